// Moves the actors of a top view through the recorded scene; the view follows the ego vehicle, or shows the whole route.
for (const top of document.querySelectorAll(".top")) {
  const data = top.querySelector("script");
  if (!data) continue;
  const scene = JSON.parse(data.textContent), svg = top.querySelector("svg"), bar = top.querySelector(".replay");
  const button = bar.querySelector("button"), [slider, follow] = bar.querySelectorAll("input");
  const clock = bar.querySelector("span"), count = scene.t_s.length;
  const lamps = [...svg.querySelectorAll("[data-light]")], whole = svg.viewBox.baseVal;
  const [width, height] = [whole.width, whole.height];
  const at = (runs, index) => {
    let value = null;
    for (const [first, item] of runs) { if (first > index) break; value = item; }
    return value;
  };
  const shapes = scene.tracks.map((track) => {
    const shape = document.createElementNS(svg.namespaceURI, "polygon");
    shape.setAttribute("class", "actor " + track.kind);
    shape.setAttribute("points", track.outline.map((corner) => corner.join()).join(" "));
    const name = document.createElementNS(svg.namespaceURI, "title");
    name.textContent = track.name;
    shape.append(name);
    svg.append(shape);
    return shape;
  });
  const look = (ego) => {
    const share = follow.checked && ego ? scene.near_px / width : 1;
    const [left, upper] = share < 1 ? [ego[0] - share * width / 2, ego[1] - share * height / 2] : [0, 0];
    svg.setAttribute("viewBox", [left, upper, share * width, share * height].join(" "));
    svg.classList.toggle("near", share < 1);
  };
  const show = (index) => {
    svg.classList.add("played");
    slider.value = index;
    clock.textContent = scene.t_s[index].toFixed(1) + " s";
    look(at(scene.tracks[0].poses, index));
    scene.tracks.forEach((track, number) => {
      const pose = at(track.poses, index), size = svg.classList.contains("near") ? 1 : track.grown;
      shapes[number].setAttribute("visibility", pose ? "visible" : "hidden");
      if (pose) shapes[number].setAttribute("transform", `translate(${pose[0]} ${pose[1]}) rotate(${pose[2]}) scale(${size})`);
    });
    for (const lamp of lamps) lamp.setAttribute("class", "light " + at(scene.lights[lamp.dataset.light] || [], index));
  };
  shapes.forEach((shape) => shape.setAttribute("visibility", "hidden"));
  slider.max = count - 1;
  slider.oninput = follow.oninput = () => show(+slider.value);
  let timer = null;
  const stop = () => { clearInterval(timer); timer = null; button.textContent = "play"; };
  button.onclick = () => {
    if (timer) return stop();
    if (+slider.value >= count - 1) slider.value = 0;
    button.textContent = "stop";
    timer = setInterval(() => (+slider.value >= count - 1 ? stop() : show(+slider.value + 1)), 100);
  };
  clock.textContent = scene.t_s[0].toFixed(1) + " s";
  bar.hidden = false;
}

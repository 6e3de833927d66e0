// Sorts and filters the table of routes.
for (const table of document.querySelectorAll("table.runs")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  const value = (row, column) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
  const compare = (a, b) => {
    const x = parseFloat(a), y = parseFloat(b);
    if (a === "" || b === "") return (a === "") - (b === "");
    return isNaN(x) || isNaN(y) ? a.localeCompare(b, undefined, { numeric: true }) : x - y;
  };
  heads.forEach((head, column) => {
    const button = head.querySelector("button");
    if (button) button.onclick = () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const rows = [...body.rows].sort((a, b) => (up ? 1 : -1) * compare(value(a, column), value(b, column)));
      body.append(...rows);
    };
  });
  const filters = table.closest(".card").querySelector(".filters");
  if (!filters) continue;
  const [text, ...choices] = filters.querySelectorAll("input, select"), shown = filters.querySelector("output");
  const apply = () => {
    const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of body.rows) {
      const content = row.textContent.toLowerCase();
      const fits = words.every((word) => content.includes(word)) &&
        choices.every((choice) => !choice.value || (row.dataset[choice.name] || "").split("|").includes(choice.value));
      row.hidden = !fits;
      count += fits;
    }
    shown.textContent = `${count} of ${body.rows.length}`;
  };
  for (const control of [text, ...choices]) control.oninput = apply;
  filters.hidden = false;
  apply();
}

"""What a model learns from: conversation files, mixed, drawn in a fixed order, and encoded as serving does.

    sources.py     one file, any size, by sample number
    mixture.py     several files with weights; which sample stands at which position of the run
    encode.py      a sample as token ids, positions and patches
    loader.py      the samples of each optimiser step, for any number of ranks and workers
    check.py  show.py  command.py  converters/         `wamdiff2 data`
"""

"""The paper's tables, figures and propositions, reproduced by one command; see `docs/reproduce.md`.

plan.py         what is run: models, data sets, the quick and the full setting
sets.py         the data of each cell, synthetic or real
cells.py        one record per cell, on disk
running.py      cells in processes of their own; a rerun fills what is missing
pace.py         how long cells take
fitting.py      a fit and its numbers
tabled.py       the paper's form with 10,000 features at the cost of a few
experiments.py  the paper's propositions and claims, as small experiments
tables.py       numbers over seeds beside what the paper prints, and which claims hold
figures.py      the paper's figures
report.py       the report of all of it
commands.py     what `fourpoint reproduce` calls
"""

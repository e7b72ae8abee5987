"""The paper's tables, figures and propositions, reproduced by one command; see `docs/reproduce.md`.

plan.py         what is run: models, data sets, the quick and the full setting
published.py    what the paper prints
sets.py         the data of each cell, synthetic or real
cells.py        one record per cell, on disk
running.py      cells in processes of their own; a rerun fills what is missing
fitting.py      a fit and its numbers
theory.py       Propositions 1 and 2
claims.py       the paper's other claims, as small experiments
table1.py, table2.py, figure_*.py, verdicts.py, report.py     from records to what is read
commands.py     what `fourpoint reproduce` calls
"""

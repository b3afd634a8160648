"""The chapters of a report: each takes a run and gives a section of the page, or a sentence on what is missing."""

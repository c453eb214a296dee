"""The paper's tables and figures: a file for each experiment, which reads like its caption."""

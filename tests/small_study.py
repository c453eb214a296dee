"""The command line, but for what makes a round of the paper's experiments long: model and SLR's window are small."""

from __future__ import annotations

from typing import Any

from anabranch.cli import main
from anabranch.config import Config
from anabranch.experiments import study

WINDOW, EMBEDDING = 2, 16


class Study(study.Study):
    """As the study, with one layer a party where the paper's i-MNIST model has two."""

    def config(self, problem: study.Problem, method: study.Method, **options: Any) -> Config:
        if problem.name == "imnist":
            small = {"name": "mlp", "clients": problem.clients or 4, "hidden": (), "embedding": EMBEDDING, "server": ()}
            options = {"model": small} | options
        return super().config(problem, method, **options)


if __name__ == "__main__":
    study.Study = Study
    study.UPDATES["SLR"]["window"] = WINDOW
    main()

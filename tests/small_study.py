"""The command line, but for what makes the paper's experiments long: model, images, window and grids are small."""

from __future__ import annotations

from typing import Any

from anabranch.cli import main
from anabranch.config.run import Config
from anabranch.paper import main_table, study

WINDOW, EMBEDDING = 2, 16
POOL = 4
"""49 pixels an image."""
RATES = (0.1, 0.01)
"""That methods are tuned on."""


class Study(study.Study):
    """As the study, with one layer a party where the paper's models have two to four."""

    def config(self, problem: study.Problem, method: study.Method, **options: Any) -> Config:
        small: dict[str, Any] = {"name": "mlp", "hidden": (), "embedding": EMBEDDING, "server": ()}
        if problem.name == "imnist":
            small["clients"] = problem.clients or 4
            options = {"stream": {"name": "imnist", "pool": POOL}} | options
        return super().config(problem, method, **{"model": small} | options)


if __name__ == "__main__":
    study.Study = Study
    study.Problem.learning_rates = RATES
    main_table.COMMON_RATES = main_table.COMMON_RATES[:1]
    study.UPDATES["SLR"]["window"] = WINDOW
    main()

"""Write the report from all results: `python stages/report.py` -> reports/{index.html,leaderboard.json,...}."""

from faithline import config


def main() -> None:
    """Read everything, then write the page, the JSON results, the plots and the gallery."""
    params = config.load()

    from faithline.reporting import site

    site.write(params)


if __name__ == "__main__":
    from faithline.errors import run_stage

    run_stage(main)

"""The recipe, as headrace finds it. Every command imports this module, so it imports little."""

from headrace.recipe import Recipe


class EveryNthRecipe(Recipe):
    """Keep every n-th row of each file."""

    name = "every_nth"
    commands = ("thin",)
    help = (
        "Keep every n-th row of each file.\n\nExample:  headrace thin raw --out thinned --step 10"
    )
    init_word = "thin"
    stages = {"split": ("thin out files", "files")}
    reasons = {"between": "is between two rows that are kept"}
    requested_drops = Recipe.requested_drops | {"between"}
    row = "kept row"

    def settings(self):
        from every_nth.settings import EveryNth

        return EveryNth

    def execute(self, settings, context, files):
        from every_nth.stages import execute

        return execute(settings, context, files)

    def verify(self, run, workers):
        from every_nth.stages import verify

        return verify(run)

    def init_options(self):
        from every_nth.settings import ThinOptions

        return ThinOptions

    def init(self, options, data):
        from headrace.cli.init.commented import Section

        about = f"{len(data.listing.names)} files"
        settings = {
            "recipe": "every_nth",
            "source": options.source[0],
            "out": options.out,
            "step": 10,
        }
        return [Section(f"Looked at {about}.", settings)], about

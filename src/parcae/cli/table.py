"""The commands by name. The module of a command is imported when the command runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from typer.core import TyperCommand, TyperGroup

from parcae.base.errors import ConfigError
from parcae.base.extensions import extensions, load

#: By name: "module:function" (none for a group of commands), and the help in few words.
COMMANDS = {
    "simulate": ("parcae.cli.simulate:simulate", "Simulate a workload under some policies."),
    "size": ("parcae.cli.size:size", "Find how many cores a workload needs."),
    "compare": ("parcae.cli.compare:compare", "Compare policies on the same seeds."),
    "judge": ("parcae.cli.judge:judge", "Judge a policy, also one of your own."),
    "compare-logs": ("parcae.cli.compare_logs:compare_logs", "Compare event logs by job."),
    "forecast": ("parcae.cli.logs:forecast", "What a policy would have saved in a log."),
    "explain": ("parcae.cli.logs:explain", "Why a policy changes queries of a log."),
    "consolidate": (
        "parcae.cli.logs:consolidate",
        "What one shared Spark would be in place of applications.",
    ),
    "learn": ("parcae.cli.learn:learn", "Learn a policy from event logs, and what it saves."),
    "tune": ("parcae.cli.train:tune", "Tune the parameters of a rule for a workload."),
    "train": ("parcae.cli.train:train", "Train a network for a workload."),
    "serve": ("parcae.cli.serve:serve", "Schedule live clusters."),
    "replay": ("parcae.cli.serve:replay", "Hold another policy against a recording of `serve`."),
    "export": ("parcae.cli.export:export", "Write a policy file for the Spark plugin."),
    "policies": ("parcae.cli.export:policies", "List the policies."),
    "workload": ("", "Import, prepare, describe and sample workloads."),
    "workload import": ("parcae.cli.workload:app", "Make a workload file from logs or a trace."),
    "workload describe": ("parcae.cli.workload:describe", "Describe a workload."),
    "workload check": ("parcae.cli.workload:check", "Hold the simulator against an event log."),
    "workload sample": ("parcae.cli.workload:sample", "Draw jobs into a smaller workload file."),
    "workload prepare": ("parcae.cli.workload:prepare", "Change the jobs of a workload."),
    "bench": ("", "Measure the speed of Parcae on this machine."),
    "bench simulator": ("parcae.cli.bench:simulator", "Simulated tasks per second."),
    "bench decision": ("parcae.cli.bench:decision", "The time that a policy needs for a plan."),
    "bench service": ("parcae.cli.bench:service", "The time from an event to its orders."),
    "spark": ("", "Turn Parcae on in an Apache Spark."),
    "spark jar": ("parcae.cli.spark:jar", "Print the path of the plugin's jar."),
    "spark conf": ("parcae.cli.spark:conf", "Print the settings that turn the plugin on."),
    "spark kubernetes": (
        "parcae.cli.spark:kubernetes",
        "Print a Secret with the plugin for Kubernetes.",
    ),
    "spark submit": ("parcae.cli.spark:submit", "Run spark-submit with the plugin."),
    "spark doctor": ("parcae.cli.spark:doctor", "Check an installation of the plugin."),
}
#: The worlds of the commands above. A name such as "simulate --world rigid" is a command with
#: options of its own.
_WORLDS = ("cores", "executors")
_BETWEEN = " --world "


@cache
def commands() -> Mapping[str, tuple[str, str]]:
    """The commands of Parcae and of installed extensions."""
    found = dict(COMMANDS)
    for extension in extensions().values():
        for name in extension.commands.keys() & found.keys():
            raise ConfigError(f"two packages bring a command {name!r}: uninstall one of them")
        found |= extension.commands
    return found


class LazyGroup(TyperGroup):
    """A group of the commands whose names begin with its own name."""

    def __init__(self, *, prefix: str = "", **attrs: Any) -> None:
        self._prefix = prefix
        super().__init__(**attrs)
        # Commands that can only be listed. Typer looks here for names that are similar to a wrong
        # one.
        self.commands = {
            name: TyperCommand(name, help=commands()[prefix + name][1])
            for name in self.list_commands(None)
            if " " not in name
        }

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, also those of commands of other worlds ("simulate --world rigid")."""
        names = [
            one.removeprefix(self._prefix) for one in commands() if one.startswith(self._prefix)
        ]
        return [name for name in names if " " not in name.partition(_BETWEEN)[0]]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a command; None if there is none of this name."""
        full = self._prefix + cmd_name
        if full not in commands():
            return None
        place, help = commands()[full]
        if not place:
            return LazyGroup(prefix=f"{full} ", name=cmd_name, help=help, no_args_is_help=True)
        # Imported here: a function's options need the configs that the command works with.
        from parcae.cli.commands import made

        return made(cmd_name, load(place, "command"))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """List the commands, without importing them."""
        described = TyperGroup(name=self.name, commands=dict(self.commands), params=self.params)
        described.help = self.help
        described.rich_markup_mode = "rich"
        described.format_help(ctx, formatter)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command of a command line, that of the world that it names."""
        words = [word for arg in args for word in arg.split("=", 1)]
        world = words[words.index("--world") + 1] if "--world" in words[1:-1] else ""
        in_world = f"{args[0]}{_BETWEEN}{world}"
        if self._prefix + in_world not in commands():
            return super().resolve_command(ctx, args)
        rest = args[1:]
        begin = next(i for i, arg in enumerate(rest) if arg.partition("=")[0] == "--world")
        del rest[begin : begin + (1 if "=" in rest[begin] else 2)]
        return in_world, self.get_command(ctx, in_world), rest

    def invoke(self, ctx: Any) -> Any:
        """Run a command; name the world of an option that the command's world does not have."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            # An option without its value has an `option_name`, too, but no `possibilities`.
            is_unknown = hasattr(error, "possibilities")
            option = getattr(error, "option_name", None) if is_unknown else None
            for world in self._worlds_with(option, ctx) if option else ():
                raise ConfigError(
                    f"{option} has no effect here: it applies only with --world {world}; leave it "
                    "out"
                ) from None
            raise

    def _worlds_with(self, option: str, ctx: Any) -> Iterator[str]:
        """The other worlds in which the command that runs has an option."""
        name, _, world = str(ctx.invoked_subcommand).partition(_BETWEEN)
        for full in commands():
            other = full.removeprefix(self._prefix)
            if other != name and not other.startswith(f"{name}{_BETWEEN}"):
                continue
            if other.partition(_BETWEEN)[2] == world:
                continue
            if any(option in param.opts for param in self.get_command(ctx, other).params):
                yield other.partition(_BETWEEN)[2] or " or ".join(_WORLDS)

//! An environment in `./.venv` that nobody named or activated, made by uv, whose users run `uv run`; spoilt by the
//! interpreter it links to being gone.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "working_folder",
    rule: "python-outside-venv",
    found: Detection::Files(Severity::Error, ".venv/bin"),
    build: |twin| {
        let world = World::on("a10")
            .python("3.14")
            .uv()
            .torch("2.10.0+cu128", &[], &["sm_80", "sm_86"])
            .in_working_folder();
        twin.broken(world, |world| world.without("usr/bin/python3.14"))
    },
    ..BLANK
};

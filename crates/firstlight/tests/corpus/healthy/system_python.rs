//! Ubuntu's own Python found on PATH, with packages of pip; spoilt by a shell in which an environment is called active
//! that is not first on PATH.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "system_python",
    rule: "python-outside-venv",
    found: Detection::Files(Severity::Error, "VIRTUAL_ENV"),
    build: |twin| {
        let world =
            World::on("a10").system_python("3.10").torch("2.9.1+cu128", &[], &["sm_80", "sm_86"]);
        let venv = "home/user/other";
        twin.broken(world, |world| {
            world
                .file(&format!("{venv}/pyvenv.cfg"), "home = /usr/bin\nversion = 3.10.12\n")
                .link(&format!("{venv}/bin/python"), "/usr/bin/python3.10")
                .file(&format!("{venv}/lib/python3.10/site-packages/_virtualenv.pth"), "")
                .var("VIRTUAL_ENV", "/home/user/other")
        })
    },
    ..BLANK
};

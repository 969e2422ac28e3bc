//! A module built with NumPy 2's headers beside NumPy 2; spoilt by NumPy 1's headers, whose messages are in it instead.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::library::Library;
use crate::world::World;
use facts::Severity;

const OPS: &str = "own_ops/_C.abi3.so";

pub(super) const PAIR: Pair = Pair {
    name: "built_with_numpy_2",
    rule: "numpy-abi",
    found: Detection::Files(Severity::Error, OPS),
    says: "A module that was compiled using NumPy 1.x cannot be run in\nNumPy 2.3.5 as it may crash.",
    opens: &[],
    build: |twin| {
        let both = "module compiled against ABI version 0x%x but this version of numpy is 0x%x ";
        let own = twin.pick(
            "numpy.core._multiarray_umath",
            "numpy._core._multiarray_umath module was compiled against NumPy C-API version 0x%x (NumPy 1.25) but",
        );
        World::on("a10")
            .dist("numpy", "2.3.5", &[])
            .dist("own_ops", "1.0", &[OPS])
            .library(OPS, &Library::new().text(&format!("{both}{own}")))
    },
    ..BLANK
};

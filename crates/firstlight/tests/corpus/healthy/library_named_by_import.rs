//! A library that Python code opens when its package is imported, as torchtext and torchaudio do, built for the torch here;
//! spoilt by one that was built for another.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::library::Library;
use crate::rows::{NEW, TORCH};
use crate::world::World;
use facts::Severity;

const LIBRARY: &str = "own_text/lib/libown_text.so";
const GONE: &str = "_ZN3c1021throwNullDataPtrErrorEv";

pub(super) const PAIR: Pair = Pair {
    name: "library_named_by_import",
    rule: "extension-other-torch",
    found: Detection::Files(Severity::Error, LIBRARY),
    says: "undefined symbol: _ZN3c1021throwNullDataPtrErrorEv",
    opens: &[TORCH, LIBRARY],
    build: |twin| {
        let c10 = Library::named("libc10.so");
        let library = Library::new().linked_with(&c10).wants(&[twin.pick(GONE, NEW)]);
        World::on("a10")
            .torch("2.9.1+cu128", &[NEW], &[])
            .dist("own_text", "0.18", &["own_text/__init__.py", "own_text/_extension.py", LIBRARY])
            .in_site("own_text/__init__.py", "from own_text import _extension\n")
            .in_site(
                "own_text/_extension.py",
                "def load(name):\n    ...\n\nload(\"libown_text\")\n",
            )
            .library(LIBRARY, &library)
    },
    ..BLANK
};

//! conda's own libstdc++ is newer than the system's, and is what conda's extension asks for; spoilt by an older one.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::library::Library;
use crate::world::World;
use facts::Severity;

const OPS: &str = "own_ops/_C.abi3.so";

pub(super) const PAIR: Pair = Pair {
    name: "conda_newer_libstdcxx",
    rule: "libstdcxx-too-old",
    found: Detection::Files(Severity::Error, OPS),
    says: "version `GLIBCXX_3.4.99' not found",
    opens: &[OPS],
    build: |twin| {
        let old = Library::named("libstdc++.so.6").exports(&["older@GLIBCXX_3.4.30"]);
        let new = Library::named("libstdc++.so.6")
            .exports(&["older@GLIBCXX_3.4.30", "newer@GLIBCXX_3.4.99"]);
        let ops =
            Library::new().linked_with(&new).wants(&["newer"]).search("RPATH $ORIGIN/../../..");
        World::on("a10")
            .conda()
            .system("libstdc++.so.6", &old)
            .dist("own_ops", "1.0", &[OPS])
            .library(OPS, &ops)
            .library_at("home/user/venv/lib/libstdc++.so.6", twin.pick(&old, &new))
    },
    ..BLANK
};

//! Packages on disk, and the names that their imports certainly do not find.

use super::reader::{read, read_completely};
use super::{failures, missing_names, python};
use crate::{EnvOptions, Source, environments};
use proptest::prelude::*;
use std::collections::{BTreeSet, HashMap};
use std::path::Path;

/// Writes files below a folder.
fn lay(site: &Path, files: &[(&str, &str)]) {
    for (path, text) in files {
        let path = site.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
}

/// The missing names of importing `user`, as `file:line kind module.name`.
fn found(files: &[(&str, &str)]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    lay(folder.path(), files);
    let versions: HashMap<String, String> =
        [("user", "2.0"), ("sibling", "1.9+cu13")].map(|(top, it)| (top.into(), it.into())).into();
    let sites = vec![folder.path().to_path_buf()];
    let found = failures(&Source::live(), sites, python(3, 12), &versions, &["user".to_owned()]);
    let line = |failure: super::Failure| {
        let file = failure.path.strip_prefix(folder.path()).unwrap().display().to_string();
        format!("{file}:{} {:?} {}.{}", failure.line, failure.kind, failure.module, failure.name)
    };
    found.into_iter().map(|(failure, _)| line(failure)).collect()
}

/// Checks the result for a `user` with one statement and a `lib` with one file.
fn check(user: &str, lib: &str, expect: &[&str]) {
    let files =
        [("user/__init__.py", user), ("lib/__init__.py", lib), ("lib/sub.py", "deep = 1\n")];
    assert_eq!(found(&files), expect, "{user:?} of {lib:?}");
}

#[test]
fn reports_names_that_no_statement_binds() {
    let lib = "import os\nfrom .sub import deep as renamed\nclass A:\n    inner = 1\n";
    check("from lib import A, renamed, os, sub\n", lib, &[]);
    check("\nfrom lib import gone\n", lib, &["user/__init__.py:2 Name lib.gone"]);
    check("from lib import inner\n", lib, &["user/__init__.py:1 Name lib.inner"]);
    check("from lib import (A,\n    gone as there)\n", lib, &["user/__init__.py:1 Name lib.gone"]);
    check("import lib.gone\n", lib, &["user/__init__.py:1 Submodule lib.gone"]);
    check("from lib.sub import deep, gone\n", lib, &["user/__init__.py:1 Name lib.sub.gone"]);
    check("import lib\nx = lib.sub.gone\n", lib, &["user/__init__.py:2 Attribute lib.sub.gone"]);
    check(
        "import lib as l\n@l.gone\ndef f(): ...\n",
        lib,
        &["user/__init__.py:2 Attribute lib.gone"],
    );
    check("import lib\ndef f(x: lib.gone): ...\n", lib, &["user/__init__.py:2 Attribute lib.gone"]);
    check(
        "import lib\nclass B(lib.A):\n    x = lib.gone\n",
        lib,
        &["user/__init__.py:3 Attribute lib.gone"],
    );
    check("from missing import x\nfrom lib import A\n", lib, &[]);
}

/// The effects of a file's import, with skipped or with parsed bodies of functions.
fn parsed(text: &str, skip: bool) -> String {
    let module =
        if skip { read(text, python(3, 12)) } else { read_completely(text, python(3, 12)) };
    let patched: BTreeSet<_> = module.patched.iter().chain(&module.patched_objects).collect();
    let aliases: BTreeSet<_> = module.aliases.iter().map(|it| format!("{it:?}")).collect();
    format!(
        "{:?} {:?} {:?} {:?} {:?} {:?} {patched:?} {aliases:?}",
        module.body, module.bound, module.stars, module.dynamic, module.changes_path, module.guards
    )
}

#[test]
fn bodies_of_functions_end_where_their_block_ends() {
    let bodies = [
        "    return 1\n",
        "    x = (1,\n2)\n    y = 1\n",
        "    x = [\n# ]\n'[', \"]\",\n]\n",
        "    '''doc\nimport not_this\n    '''\n",
        "    \"\"\"a \\\"\"\" b\nx = 1\n\"\"\"\n    y = r'\\'\n",
        "    x = f'{a[\"b\"]}' f\"\"\"{\nb}\n\"\"\"\n    y = rb'\\\\'\n",
        "    x = 1 + \\\n2\n    y = 'a\\\nb'\n",
        "# comment\n    x = 1\n\n  # it's\n    y = 1\n",
        "    def g():\n        global set_here\n        set_here = 1\n    x = 1\n",
        "    if x:\n        setattr(other, 'name', 1)\n    else:\n        exec(x)\n",
        "    import a\n    if a.own_version != a.other_version:\n        raise x\n",
        "\tx = 1\n        y = 1\n\x0c    z = 1\n",
    ];
    for body in bodies {
        for header in ["def f(a, b=(1, 2)):\n", "async def f[T](\n    a) -> int:  # of x\n"] {
            for ends in ["\n", "\r\n", "\r"] {
                let text =
                    format!("class C:\n  @d\n  {header}    pass\n{header}{body}import after\n");
                let text = text.replace('\n', ends);
                assert_eq!(parsed(&text, true), parsed(&text, false), "{text}");
                assert!(parsed(&text, true).contains("after"), "{text}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn skipped_bodies_change_nothing(pieces in prop::collection::vec(prop::sample::select(PIECES), 0..60)) {
        let text = pieces.concat();
        prop_assert_eq!(parsed(&text, true), parsed(&text, false));
    }
}

/// Parts of Python files that decide where statements end.
const PIECES: &[&str] = &[
    "\n",
    "\n",
    "\n    ",
    "\n    ",
    "\n        ",
    "\n\t",
    "\r\n  ",
    "\ndef f(a):",
    "\n    def g():",
    "\nasync def h():",
    "\nclass C:",
    "\nimport a.b",
    "\n    from c import d",
    "\nx = a.b",
    "\nif x:",
    "\ntry:",
    "\nexcept E:",
    "\n    global z",
    "return x",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "'",
    "\"",
    "'''",
    "\"\"\"",
    "f'",
    "rb\"",
    "\\",
    "\\\n",
    "#",
    " ",
    ":",
    ";",
    ",",
    "=",
    "lambda: 1",
    "setattr(a, 'k', 1)",
    "globals()",
    "a.__dict__.update(b)",
    "é",
    "1.5e-3",
    "def __getattr__(name):",
];

#[test]
fn conditional_statements_are_ignored() {
    for user in [
        "try:\n    from lib import gone\nexcept ImportError:\n    gone = None\n",
        "try:\n    import lib.gone\nexcept (KeyError, Exception):\n    pass\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from lib import gone\n",
        "import sys\nif sys.version_info < (3, 10):\n    from lib import gone\n",
        "import lib\nif hasattr(lib, 'gone'):\n    x = lib.gone\n",
        "def f():\n    from lib import gone\n",
        "import lib\nx = lambda: lib.gone\n",
        "import lib\nx = None and lib.gone\n",
        "from __future__ import annotations\nimport lib\ndef f(x: lib.gone): ...\n",
        "import contextlib\nwith contextlib.suppress(ImportError):\n    from lib import gone\n",
        "import lib\nlib = object()\nx = lib.gone\n",
        "import lib\nlib.gone = 1\nx = lib.gone\n",
        "for name in []:\n    from lib import gone\n",
    ] {
        check(user, "", &[]);
    }
    let later = "import sys\nif sys.version_info >= (3, 10):\n    from lib import gone\n";
    check(later, "", &["user/__init__.py:3 Name lib.gone"]);
    let raised =
        "try:\n    from lib import gone\nexcept ImportError as e:\n    raise ValueError from e\n";
    check(raised, "", &["user/__init__.py:2 Name lib.gone"]);
    let other = "try:\n    from lib import gone\nexcept KeyError:\n    pass\n";
    check(other, "", &["user/__init__.py:2 Name lib.gone"]);
    let second =
        "try:\n    from lib import gone\nexcept ImportError:\n    from lib.sub import gone\n";
    check(second, "", &["user/__init__.py:4 Name lib.sub.gone"]);
}

#[test]
fn modules_with_dynamic_names_have_all_names() {
    for lib in [
        "gone = 1\n",
        "if unknown():\n    gone = 1\n",
        "def f():\n    global gone\n    gone = 1\n",
        "with open('x') as gone: pass\n",
        "for a, (gone, *b) in []: pass\n",
        "if (gone := 1): pass\n",
        "from ctypes import *\n",
        "from .sub import *\nfrom .other import *\n",
        "for name in names:\n    globals()[name] = 1\n",
        "exec('gone = 1')\n",
        "import sys\nsys.modules[__name__] = object()\n",
        "def __getattr__(name):\n    return getattr(other, name)\n",
        "def __getattr__(name):\n    if name == 'gone':\n        return 1\n    raise AttributeError(name)\n",
        "__getattr__, __dir__, __all__ = attach(__name__, {'sub': ['gone']})\n",
        "_import_structure = {'sub': ['gone']}\nimport sys\nsys.modules[__name__] = _LazyModule(__name__, globals()['__file__'], _import_structure)\n",
    ] {
        let files = [
            ("user.py", "from lib import gone\n"),
            ("lib/__init__.py", lib),
            ("lib/sub.py", ""),
            ("lib/other.py", "gone = 1\n"),
        ];
        assert_eq!(found(&files), [""; 0], "{lib}");
    }
    // A list of names is complete.
    for lib in [
        "def __getattr__(name):\n    if name == 'old':\n        return 1\n    raise AttributeError(name)\n",
        "__getattr__, __dir__, __all__ = attach(__name__, {'sub': ['old']})\n",
        "import sys\nsys.modules[__name__] = _LazyModule(__name__, globals()['__file__'], {'sub': ['old']})\n",
        "from .sub import *\n",
        "if False:\n    gone = 1\n",
        "gone: int\n",
    ] {
        check("from lib import gone\n", lib, &["user/__init__.py:1 Name lib.gone"]);
    }
    // A literal list is complete, wherever else the name occurs.
    let attached =
        "__getattr__, __dir__, __all__ = attach(__name__, submod_attrs={'sub': ['old']})\n";
    let elsewhere = [
        ("user.py", "from lib import gone\n"),
        ("lib/__init__.py", attached),
        ("lib/sub.py", "gone = 1\n"),
    ];
    assert_eq!(found(&elsewhere), ["user.py:1 Name lib.gone"]);
    // toolz's tlz gets its names from a loader that one of its modules registers.
    let registered = [
        ("user.py", "from lib import gone\n"),
        ("lib/__init__.py", "from . import build\n"),
        ("lib/build.py", "import sys\nsys.meta_path.insert(0, Loader())\n"),
    ];
    assert_eq!(found(&registered), [""; 0]);
    // Compiled modules are not parsed, and may set names of their package.
    let compiled = [
        ("user.py", "from lib import gone\n"),
        ("lib/__init__.py", ""),
        ("lib/_C.abi3.so", "..gone."),
    ];
    assert_eq!(found(&compiled), [""; 0]);
}

#[test]
fn namespaces_have_the_modules_of_their_folders() {
    let user = "from flash import cute\nfrom flash import flash_func\n";
    let files = [("user.py", user), ("flash/cute/__init__.py", "")];
    assert_eq!(found(&files), ["user.py:2 Name flash.flash_func"]);
    let more = [files[0], files[1], ("x-nspkg.pth", ""), ("flash_x-nspkg.pth", "")];
    assert_eq!(found(&more), [""; 0]);
}

#[test]
fn failures_reach_the_packages_that_import_them() {
    let files = [
        ("user/__init__.py", "from . import a\n"),
        ("user/a.py", "import lib\n"),
        ("lib.py", "from other import gone\n"),
        ("other.py", "here = 1\n"),
    ];
    assert_eq!(found(&files), ["lib.py:1 Name other.gone"]);
    // Both import each other.
    let circle = [("user.py", "import lib\nx = 1\n"), ("lib.py", "import user\ny = user.x\n")];
    assert_eq!(found(&circle), [""; 0]);
}

#[test]
fn keywords_that_a_function_of_another_package_lacks_are_reported() {
    let lib = "from .sub import deep\nclass C:\n    def __init__(self, a): ...\ndef f(a, *, b=1): ...\n\
               def open(**rest): ...\n@wraps\ndef wrapped(a): ...\nif unknown():\n    def maybe(a): ...\n";
    let check = |user: &str, expect: &[&str]| {
        let files = [
            ("user/__init__.py", user),
            ("user/own.py", "def f(a): ...\n"),
            ("lib/__init__.py", lib),
            ("lib/sub.py", "def deep(a): ...\n"),
        ];
        assert_eq!(found(&files), expect, "{user}");
    };
    check("import lib\nx = lib.f(1, b=2)\n", &[]);
    check("import lib\nx = lib.f(1, c=2)\n", &["user/__init__.py:2 Keyword lib.f.c"]);
    check(
        "from lib import f\n@f(a=g(c=1), c=2)\ndef g(): ...\n",
        &["user/__init__.py:2 Keyword lib.f.c"],
    );
    check(
        "from lib import C as D\nx = [D(a=1), D(b=1)]\n",
        &["user/__init__.py:2 Keyword lib.C.b"],
    );
    check("import lib\nx = lib.deep(b=1)\n", &["user/__init__.py:2 Keyword lib.sub.deep.b"]);
    for user in [
        "from lib import open, wrapped, maybe\nx = open(c=1), wrapped(c=1), maybe(c=1)\n",
        "from lib import f\ntry:\n    f(c=1)\nexcept TypeError:\n    pass\n",
        "from lib import f\ndef g():\n    f(c=1)\n",
        "from lib import f\nf = print\nf(c=1)\n",
        "import lib\nlib.f = print\nlib.f(c=1)\n",
        "from .own import f\nf(c=1)\n",
        "from lib import f\nx = f(1, b={'c': 2}) if unknown() else f(c=1)\n",
    ] {
        check(user, &[]);
    }
}

#[test]
fn lazily_loaded_modules_are_followed() {
    let lazy = "def __getattr__(name):\n    if name in names:\n        return import_module(names[name])\n    raise AttributeError(name)\n";
    let structure = "import sys\nsys.modules[__name__] = _LazyModule(__name__, globals()['__file__'], _import_structure)\n";
    let check = |lib: &str, expect: &[&str]| {
        let files = [
            ("user.py", "from lib import Model\n"),
            ("lib/__init__.py", lib),
            ("lib/models.py", "from other import gone\nclass Model: ...\n"),
            ("lib/fine.py", "class Model: ...\n"),
            (
                "lib/deeper/__init__.py",
                "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .models import Model\nelse:\n    import sys\n    sys.modules[__name__] = _LazyModule(define_import_structure())\n",
            ),
            ("lib/deeper/models.py", "import other.gone\nclass Model: ...\n"),
            ("other.py", "here = 1\n"),
        ];
        assert_eq!(found(&files), expect, "{lib}");
    };
    let fails = ["lib/models.py:1 Name other.gone"];
    check(&format!("names = {{'Model': '.models'}}\n{lazy}"), &fails);
    check(&format!("_import_structure = {{'models': ['Model']}}\n{structure}"), &fails);
    check(
        &format!("_import_structure = {{'deeper': ['Model']}}\n{structure}"),
        &["lib/deeper/models.py:1 Submodule other.gone"],
    );
    check(&format!("names = {{'Model': '.fine'}}\n{lazy}"), &[]);
    // Two candidates count as none, and an unlisted name loads no module.
    check(&format!("names = {{'Model': '.fine'}}\nmore = {{'models': ['Model']}}\n{lazy}"), &[]);
    check(&format!("names = {{'Other': '.models'}}\nModel = 1\n{lazy}"), &[]);
}

#[test]
fn siblings_of_another_version_are_refused_where_the_import_compares_them() {
    let guard = |call: &str, versions: &str| {
        format!(
            "from .version import own_version\ndef directory():\n    import sibling\n    other_version = sibling.__version__\n    if {versions}:\n        raise RuntimeError('no')\n{call}\n"
        )
    };
    let check = |text: &str, expect: &[&str]| {
        let files = [
            ("user/__init__.py", text),
            ("user/version.py", "own_version = '2.0'\n"),
            ("sibling.py", "__version__ = '1.9'\n"),
        ];
        assert_eq!(found(&files), expect, "{text}");
    };
    let unequal = "own_version != other_version";
    check(&guard("FOLDER = directory()", unequal), &["user/__init__.py:6 Version sibling.user"]);
    check(&guard("", unequal), &[]);
    check(&guard("FOLDER = directory()", "other_version"), &[]);
}

#[test]
fn environment_is_checked_once_until_a_record_changes() {
    let folder = tempfile::tempdir().unwrap();
    let site = folder.path().join("env/lib/python3.12/site-packages");
    lay(
        folder.path(),
        &[("env/pyvenv.cfg", "home = /nowhere/bin\nversion = 3.12.3\n"), ("env/bin/python", "")],
    );
    lay(
        &site,
        &[
            ("user/__init__.py", ""),
            ("user/cli.py", "from lib import gone\n"),
            ("user-2.dist-info/METADATA", "Name: user\nVersion: 2\n"),
            ("user-2.dist-info/RECORD", "user/__init__.py,,\nuser/cli.py,,\n"),
            (
                "user-2.dist-info/entry_points.txt",
                "[console_scripts]\nuser = user.cli:main\nmore = user.x:main [x]\n",
            ),
            ("lib/__init__.py", ""),
            ("the_lib-1.dist-info/METADATA", "Name: the-lib\nVersion: 1\n"),
            ("the_lib-1.dist-info/RECORD", "lib/__init__.py,,\n"),
        ],
    );
    let options = EnvOptions {
        source: Source::live().without_vars().with_working_folder(folder.path()),
        venv: Some(folder.path().join("env")),
        cache: Some(folder.path().join("cache/native")),
        verify_files: false,
    };
    let look = || missing_names(&options, &environments(&options).unwrap()[0]);
    let first = look();
    let [missing] = first.as_slice() else { panic!("{first:?}") };
    let of = (missing.dist.as_deref(), missing.provider.as_deref());
    assert_eq!(of, (Some("user"), Some("the-lib")));
    assert_eq!((missing.module.as_str(), missing.name.as_str()), ("lib", "gone"));
    assert_eq!(missing.imports, ["user.cli"]);
    assert!(missing.at.ends_with("user/cli.py:1"), "{}", missing.at);
    // The result is cached: files that change without their RECORD are not read again.
    lay(&site, &[("lib/__init__.py", "gone = 1\n")]);
    assert_eq!(look(), first);
    lay(&site, &[("the_lib-1.dist-info/RECORD", "lib/__init__.py,,9\n")]);
    assert_eq!(look(), []);
    // A cache that cannot be written only costs time.
    let unwritable = EnvOptions { cache: Some("/proc/none/native".into()), ..options.clone() };
    assert_eq!(missing_names(&unwritable, &environments(&options).unwrap()[0]), []);
}

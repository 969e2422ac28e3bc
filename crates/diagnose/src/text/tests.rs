use super::*;

fn check(pattern: &str, text: &str, expect: Option<&[(&str, &str)]>) {
    let found = Pasted::new(text).find(&Pattern::new(pattern));
    let words = found.as_ref().map(|found| {
        found.words.iter().map(|(name, word)| (name.as_str(), word.as_str())).collect::<Vec<_>>()
    });
    assert_eq!(words.as_deref(), expect, "{pattern:?} in {text:?}");
}

#[test]
fn patterns_match_wrapped_coloured_and_framed_texts() {
    let pattern = "Torch not compiled with CUDA enabled";
    for text in [
        "AssertionError: Torch not compiled with CUDA enabled",
        "torch NOT compiled with cuda enabled.",
        "Torch not compi\nled with CUDA enabled",
        "\u{1b}[31mTorch\u{1b}[0m not \u{1b}[1;4mcompiled\u{1b}[m with CUDA enabled\r\n",
        "│ Torch not compiled   │\n│ with CUDA enabled    │",
        "\u{1b}]8;;https://x\u{7}Torch\u{1b}]8;;\u{1b}\\ not compiled with CUDA enabled",
    ] {
        check(pattern, text, Some(&[]));
    }
    for text in ["Torch not compiled", "xTorch not compiled with CUDA enabled", ""] {
        check(pattern, text, None);
    }
}

#[test]
fn names_match_one_word_and_gaps_a_short_stretch() {
    check(
        "{file}: cannot open shared object file",
        "ImportError: libcudart.so.12: cannot open shared object file: No such file",
        None,
    );
    check(
        "lib{file}: cannot open shared object file",
        "ImportError: libcudart.so.12: cannot open shared object file: No such file",
        Some(&[("file", "cudart.so.12")]),
    );
    check("found version {v})", "too old (found version 12020). Please", Some(&[("v", "12020")]));
    // A terminal may break a word at a line's end; words that follow the name show where it ends.
    check("version {v})", "too old (found version 1\n2020). Please", Some(&[("v", "12020")]));
    check("version {v})", "too old (found version │\n│ 12020). Please", Some(&[("v", "12020")]));
    check("version {v})", "too old (found version 1 2020). Please", None);
    check("symbol: {s}", "undefined symbol: _ZN3c10Ea\nnext line", Some(&[("s", "_ZN3c10Ea")]));
    check("one of * is None", "one of `(a, b, c)` is None", Some(&[]));
    check("one of * is None", &format!("one of {} is None", "x".repeat(400)), None);
    // A gap is also tried from a later start.
    check("a: * b", &format!("a: {} a: x b", "x".repeat(400)), Some(&[]));
    check("v {a} of {b}!", "v 1 of 2, v 3 of 4!", Some(&[("a", "3"), ("b", "4")]));
}

#[test]
fn anchors_and_word_ends_are_respected() {
    check("^Killed$", "nvcc ...\nKilled\nmake: error", Some(&[]));
    for text in ["Skilled", "Killed it", "process Killed", "Killedx"] {
        check("^Killed$", text, None);
    }
    check("SetDeviceEa", "_ZN3c104cuda9SetDeviceEab", None);
    check("undefined symbol: _ZN3c10*", "undefined symbol: _ZN3c107Warning", Some(&[]));
    check("undefined symbol: _ZN3c10", "undefined symbol: _ZN3c107Warning", None);
    check("cuda9SetDeviceEa", "undefined symbol: _ZN3c10 4cuda9SetDeviceEa", None);
    check("_ZN3c104cuda9SetDeviceEa", "undefined symbol: _ZN3c104cuda9SetDeviceEa\n", Some(&[]));
}

#[test]
fn unfinished_escapes_and_non_ascii_do_not_panic() {
    for text in ["\u{1b}", "\u{1b}[", "\u{1b}]", "\u{1b}[31", "é漢\u{0}", "{", "*", "^$"] {
        assert_eq!(Pasted::new(text).find(&Pattern::new("no kernel image")), None);
        assert_eq!(
            Pasted::new("some text").find(&Pattern::new(text)).filter(|f| f.end > f.start),
            None,
            "{text}"
        );
    }
}

//! `plan.toml` is the plan: reading and writing it gives the same text, and errors have a line.

use crate::plans::{CU128, file, full};
use setup::emit::{FORMATS, emit, read_plan};

#[test]
fn a_plan_is_read_back_byte_by_byte() {
    let text = emit(&full(), "plan.toml").unwrap();
    let plan = read_plan(&text).unwrap();
    assert_eq!(plan, full());
    assert_eq!(emit(&plan, "plan.toml").unwrap(), text);
}

#[test]
fn the_command_in_the_head_asks_for_the_same_again() {
    let check = |plan: &facts::InstallPlan, command: &str| {
        let text = emit(plan, "plan.toml").unwrap();
        assert!(
            text.contains(&format!(
                "#   firstlight plan {command} --emit plan.toml -o plan.toml\n"
            )),
            "{text}"
        );
    };
    let mut plan = full();
    check(&plan, "--machine gh200 --allow-source flash-attn 'flash-attn==2.8.3'");
    plan.wants[0].because = "profile granite-a10".to_owned();
    check(&plan, "--machine gh200 --for granite-a10");
    plan.wants.push(facts::PlanRequirement {
        because: "requirement".to_owned(),
        specifiers: String::new(),
        ..plan.wants[0].clone()
    });
    check(
        &plan,
        "--machine gh200 --allow-source flash-attn,flash-attn 'flash-attn==2.8.3' flash-attn",
    );
}

#[test]
fn every_file_names_its_generator_and_how_to_renew_it() {
    for format in FORMATS {
        let Ok(text) = emit(&full(), format.name) else { continue };
        let head: Vec<_> = text.lines().take_while(|line| line.starts_with('#')).collect();
        let head = head.join("\n");
        assert!(head.starts_with(&format!("# {}: ", format.name)), "{head}");
        for part in ["Made by firstlight", "gh200", "firstlight plan --", "Not locked"] {
            assert!(head.contains(part), "{}: {part}: {head}", format.name);
        }
    }
    let error = emit(&full(), "requirments.txt").unwrap_err();
    assert_eq!(error.to_string(), "no format `requirments.txt`");
    assert!(error.hint().starts_with("the formats are plan.toml, "), "{}", error.hint());
}

/// The last line, from 1, that contains these words.
fn line_of(text: &str, words: &str) -> usize {
    let lines: Vec<_> = text.lines().collect();
    1 + lines.iter().rposition(|line| line.contains(words)).unwrap()
}

#[test]
fn a_damaged_plan_is_refused_with_its_line() {
    let good = emit(&full(), "plan.toml").unwrap();
    let check = |from: &str, to: &str, at: &str, words: &str| {
        let text = good.replacen(from, to, 1);
        assert_ne!(text, good, "{from}");
        let error = read_plan(&text).unwrap_err();
        assert!(error.hint().contains("make"), "{}", error.hint());
        let error = error.to_string();
        let line = line_of(&text, at);
        assert!(error.starts_with(&format!("line {line}: ")), "line {line}: {error}");
        assert!(error.contains(words), "{words}: {error}");
    };
    check(
        "schema = 1",
        "schema = 2",
        "schema = 2",
        "the plan has schema 2, this firstlight reads 1",
    );
    check("python = \"3.12\"", "python = \"3.12", "python = ", "");
    check("python = \"3.12\"", "python = 3", "python = 3", "invalid type");
    check(
        "index = \"pytorch-cu128\"",
        "index = \"elsewhere\"",
        "elsewhere",
        "not an index of this plan",
    );
    check("explicit = true", "explicit = false", CU128, "is not explicit");
    check("name = \"triton\"", "name = \"torch\"", "name = \"torch\"", "is in the plan twice");
    check("name = \"numpy-2", "name = \"../numpy-2", "../numpy", "is not a file name");
    check(&"a".repeat(64), &"A".repeat(64), "AAAA", "not 64 hexadecimal digits");
    check("locked = false", "locked = true", "name = \"torch\"", "`torch` has no file with a hash");
    check("kind = \"build\"", "kind = \"magic\"", "magic", "unknown variant");
}

#[test]
fn nothing_cut_off_is_taken_for_a_plan() {
    let good = emit(&full(), "plan.toml").unwrap();
    let last = good.trim_end().len();
    for end in (0..last).filter(|end| good.is_char_boundary(*end)) {
        assert!(read_plan(&good[..end]).is_err(), "cut at {end}: {}", &good[..end]);
    }
}

#[test]
fn a_locked_plan_says_so_and_needs_hashes() {
    let mut plan = full();
    plan.packages.retain(|package| package.name == "numpy");
    plan.packages[0].files.push(file("numpy-2.3.4.tar.gz", 'b'));
    plan.locked = true;
    let text = emit(&plan, "plan.toml").unwrap();
    assert!(text.contains("# Locked: "), "{text}");
    assert_eq!(read_plan(&text).unwrap(), plan);
    plan.packages[0].files[1].sha256 = None;
    let text = emit(&plan, "plan.toml").unwrap();
    assert!(read_plan(&text).is_err());
}

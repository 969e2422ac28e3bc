//! Sizes: the cases of other test suites, and edge cases.

use crate::case::{ALL, Case, check};
use ops::DType::{Bf16, F16, F32};

#[test]
fn prefill_cases_of_fla_match_the_reference() {
    let fla = |name, batch, t| Case::dense(name, batch, t, t).aligned(32);
    check(fla("T63", 1, 63).heads(16, 1).sizes(64, 64), &ALL);
    check(fla("T111 G32", 2, 111).heads(32, 1).sizes(100, 100), &ALL);
    check(fla("T111 D60", 1, 111).heads(32, 2).sizes(60, 60), &ALL);
    check(fla("T1024 D60", 1, 1024).heads(16, 1).sizes(60, 60).set("window", 64), &[F16]);
    check(fla("T1024 D128", 1, 1024).heads(16, 1).sizes(128, 128).set("select_count", 8), &[Bf16]);
    check(fla("V320", 1, 200).heads(16, 1).sizes(128, 320), &ALL);
}

#[test]
fn sizes_of_the_paper_match_the_reference() {
    check(Case::dense("paper", 1, 700, 700).heads(16, 1).sizes(192, 128), &[Bf16]);
    check(Case::dense("paper", 1, 20, 1500).heads(32, 2).sizes(192, 128), &[F32]);
}

#[test]
fn decode_of_1_to_280_queries_matches_the_reference() {
    for (tq, tk) in [(1, 1), (1, 33), (1, 700), (7, 300), (65, 129), (280, 400)] {
        check(
            Case::dense("decode", 2, tq, tk).heads(32, 2).sizes(64, 64).set("select_count", 4),
            &ALL,
        );
    }
}

#[test]
fn packed_batches_match_the_reference() {
    let small = |case: Case| case.heads(4, 2).blocks(8, 4, 16, 4).set("window", 20);
    check(small(Case::packed("15 0 85 200", &[(15, 15), (0, 0), (85, 85), (200, 200)])), &ALL);
    // An empty sequence, one without queries, one with more queries than keys, one without keys.
    let uneven = [(3, 40), (0, 0), (0, 9), (30, 21), (5, 0), (1, 100)];
    check(small(Case::packed("uneven", &uneven)), &ALL);
    check(small(Case::packed("nothing", &[(0, 0)])), &ALL);
    check(small(Case::packed("no sequence", &[])), &ALL);
    check(small(Case::dense("no batch", 0, 0, 0)), &ALL);
    check(small(Case::dense("no queries", 2, 0, 30)), &ALL);
}

#[test]
fn groups_of_every_size_match_the_reference() {
    // A vector of 4, 8 or 16 lanes has the heads of several queries, of one, or a part of one's.
    for group in [1, 2, 3, 4, 7, 8, 12, 16, 20, 24, 32, 48, 64, 80] {
        let case = Case::dense("group", 1, 70, 90).heads(group, 1).sizes(20, 12).blocks(8, 4, 8, 4);
        check(case.set("window", 11), &[F32, Bf16]);
    }
}

#[test]
fn odd_sizes_match_the_reference() {
    check(Case::dense("T1", 1, 1, 1).heads(3, 1).sizes(5, 3), &ALL);
    check(Case::dense("below l", 2, 31, 31).heads(4, 2), &ALL);
    check(Case::dense("fewer blocks than n", 1, 300, 300).heads(16, 1).sizes(33, 17), &ALL);
    let odd = |name| Case::dense(name, 1, 150, 170).heads(6, 2).sizes(13, 30);
    check(odd("l24 d10 l'40").blocks(24, 10, 40, 3).set("window", 7), &ALL);
    check(odd("l7 d3 l'5").blocks(7, 3, 5, 6).set("window", 1000), &ALL);
    check(odd("l5 d5 l'100").blocks(5, 5, 100, 3).set("window", 1), &ALL);
    check(odd("l40 d8 l'9").blocks(40, 8, 9, 4), &ALL);
    check(odd("l1 d1 l'1").blocks(1, 1, 1, 9), &ALL);
    check(
        odd("nothing forced").blocks(8, 4, 16, 3).set("initial_blocks", 0).set("local_blocks", 0),
        &ALL,
    );
    check(
        odd("all forced").blocks(8, 4, 16, 5).set("initial_blocks", 2).set("local_blocks", 3),
        &ALL,
    );
    check(odd("scale").set("scale", -0.7), &[F32]);
    check(odd("sharp").blocks(8, 4, 16, 5).set("scale", 20), &[F32]);
}

#[test]
fn every_combination_of_branches_matches_the_reference() {
    for branches in ["c", "s", "w", "cs", "cw", "sw", "csw"] {
        for gate in ["given", "sigmoid", "softmax"] {
            let case = Case::dense("branches", 1, 60, 80).heads(8, 2).blocks(8, 4, 8, 4);
            check(case.branches(branches).set("window", 9).set("gate", gate), &[F32, Bf16]);
        }
    }
}

#[test]
fn learned_pooling_matches_the_reference() {
    for positions in [false, true] {
        let learned = |case: Case| case.learned(positions).heads(8, 2);
        let case = Case::dense("learned", 2, 100, 130).sizes(20, 36).blocks(8, 4, 16, 4);
        check(learned(case.clone()), &ALL);
        check(learned(case.branches("s")), &[Bf16]);
        let odd = Case::packed("learned odd", &[(40, 40), (3, 5), (9, 90)]).sizes(33, 7);
        check(learned(odd.blocks(9, 4, 11, 5)), &ALL);
        // More blocks than one panel, more rows than one slice.
        let long = Case::dense("learned long", 1, 10, 600).sizes(24, 24);
        check(learned(long.blocks(12, 6, 24, 6)), &[F32]);
    }
}

//! Documents of a small run: their text, and properties of all documents.

mod fixture;
mod page;

use facts::{BackendKind, RunState, Severity, Status};
use fixture::{Sample, small};
use page::Page;
use report::{
    Run, Verdict, bench_csv, evidence_gap, html, markdown, model_speed_csv, parity_csv,
    read_bench_csv, read_parity_csv, run_report,
};

/// Compares a text with its file in `tests/golden`; `FIRSTLIGHT_BLESS=1` writes the file instead.
fn golden(name: &str, text: &str) {
    let path = format!("{}/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("FIRSTLIGHT_BLESS").is_some() {
        std::fs::write(&path, text).expect("the golden folder can be written");
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = text.lines().zip(wanted.lines()).enumerate().find(|(_, (got, want))| got != want);
    assert!(
        text == wanted,
        "{name} changed; look at it, then run again with FIRSTLIGHT_BLESS=1. First difference: {differs:?}, lines {} and {}",
        text.lines().count(),
        wanted.lines().count()
    );
}

/// Every form that a run can have: complete, interrupted, doctor only, and empty.
fn check_every_run(check: impl Fn(&str, &Run<'_>)) {
    let whole = small();
    check("whole", &whole.run());
    check("doctor only", &whole.doctor_only());
    let mut stopped = small();
    stopped.manifest.state = RunState::Incomplete;
    stopped.manifest.finished = None;
    stopped.manifest.stages.truncate(1);
    stopped.manifest.artefacts.clear();
    check("interrupted", &stopped.run());
    let mut empty = small();
    empty.doctor.findings.clear();
    empty.doctor.envs.clear();
    empty.doctor.machine.driver = None;
    empty.doctor.machine.toolkits.clear();
    empty.doctor.machine.gpus.clear();
    empty.parity.rows.clear();
    empty.bench.rows.clear();
    empty.bench.not_timed.clear();
    empty.model_speed.speeds.clear();
    empty.model_speed.not_timed.clear();
    empty.manifest.stages.clear();
    check("empty", &empty.run());
}

#[test]
fn texts_equal_the_golden_files() {
    let sample = small();
    golden("report.md", &markdown(&sample.run()));
    golden("report.html", &html(&sample.run()));
    golden("parity.csv", &parity_csv(&sample.parity));
    golden("bench.csv", &bench_csv(&sample.bench));
    golden("models.csv", &model_speed_csv(&sample.model_speed));
    let mut stopped = small();
    stopped.manifest.state = RunState::Incomplete;
    stopped.manifest.finished = None;
    golden("doctor-only-incomplete.md", &markdown(&stopped.doctor_only()));
}

#[test]
fn documents_are_reproducible() {
    assert_eq!(run_report(&small().run()), run_report(&small().run()));
}

#[test]
fn page_is_well_formed_and_makes_no_requests() {
    check_every_run(|name, run| {
        let page = Page::read(&html(run)).unwrap_or_else(|error| panic!("{name}: {error}"));
        for tag in
            ["script", "link", "iframe", "img", "object", "embed", "base", "form", "video", "audio"]
        {
            assert_eq!(page.count(tag), 0, "{name}: <{tag}>");
        }
        for attribute in
            ["src", "srcset", "action", "onclick", "onload", "onerror", "xlink:href", "data"]
        {
            assert_eq!(page.attributes(attribute).count(), 0, "{name}: {attribute}=");
        }
        for word in ["@import", "url(", "javascript:\""] {
            assert!(!page.style.contains(word), "{name}: {word}");
        }
        // Media queries for a narrow screen, dark mode and print.
        for word in ["prefers-color-scheme: dark", "@media print", "@media (max-width"] {
            assert!(page.style.contains(word), "{name}: {word}");
        }
        assert!(page.attributes("content").any(|value| value.contains("width=device-width")));
        assert_eq!(page.count("svg"), page.attributes("viewBox").count(), "{name}: a fixed size");
        let scrolled = page.attributes("class").filter(|class| *class == "scroll").count();
        assert_eq!(page.count("table"), scrolled, "{name}: a table without a scroll box");
        let ids: Vec<&str> = page.attributes("id").collect();
        let unique: std::collections::BTreeSet<&&str> = ids.iter().collect();
        assert_eq!(unique.len(), ids.len(), "{name}: an id is used twice");
        for reference in page.attributes("aria-labelledby").flat_map(str::split_whitespace) {
            assert!(ids.contains(&reference), "{name}: aria-labelledby {reference}");
        }
        let of_folder = [
            "facts.json",
            "run.json",
            "parity.csv",
            "bench.csv",
            "models.json",
            "logs/verify%20log.txt",
        ];
        let pages = ["https://github.com/pytorch/pytorch", "https://example.org/matrix"];
        for link in page.attributes("href") {
            let known = match link.strip_prefix('#') {
                Some(id) => ids.contains(&id),
                None => of_folder.contains(&link) || pages.contains(&link),
            };
            assert!(known, "{name}: a link goes nowhere: {link}");
        }
    });
}

#[test]
fn r4_17_every_artefact_is_linked_with_its_hash() {
    let sample = small();
    let (page, text) = (html(&sample.run()), markdown(&sample.run()));
    for artefact in &sample.manifest.artefacts {
        let link = artefact.path.replace(' ', "%20");
        assert!(page.contains(&format!("href=\"{link}\"")), "{link}");
        assert!(text.contains(&format!("]({link})")), "{link}");
        assert!(page.contains(&artefact.sha256) && text.contains(&artefact.sha256), "{link}");
    }
}

#[test]
fn untrusted_text_is_escaped() {
    let sample = small();
    let page = html(&sample.run());
    for raw in
        ["<script>1", "<nvmlDeviceGetCount>", "<pinned>", "<b>|", "<100>", "href=\"javascript"]
    {
        assert!(!page.contains(raw), "{raw}");
    }
    for shown in
        ["&lt;script&gt;1&lt;/script&gt;", "NVML &lt;nvmlDeviceGetCount&gt;", "fla/&lt;b&gt;|`x`"]
    {
        assert!(page.contains(shown), "{shown}");
    }
    // A pipe in a name must not start another cell.
    let text = markdown(&sample.run());
    let mut columns = None;
    for line in text.lines() {
        if !line.starts_with('|') {
            columns = None;
            continue;
        }
        let cells = line.replace("\\|", "").matches('|').count();
        assert_eq!(*columns.get_or_insert(cells), cells, "{line}");
    }
    assert!(text.contains("sample-\\<hybrid\\>\\|x"), "{text}");
    assert!(page.contains("evil|pkg"));
}

#[test]
fn incomplete_run_is_marked_in_all_documents() {
    let mut sample = small();
    assert!(!html(&sample.run()).contains("Incomplete run."));
    sample.manifest.state = RunState::Incomplete;
    let run = sample.run();
    let plain = report::terminal::summary(&run, report::terminal::Style::default());
    for (name, text) in [("html", html(&run)), ("markdown", markdown(&run))] {
        let banner = text.find("Incomplete run.").unwrap_or_else(|| panic!("{name} has no banner"));
        assert!(
            banner < text.find("Summary").unwrap_or(0) || name == "html",
            "{name}: the banner comes first"
        );
    }
    assert!(plain.contains("verdict: incomplete."), "{plain}");
}

#[test]
fn counts_in_prose_are_counts_of_rows() {
    // Each row in turn gets each status; the sentences must follow.
    for at in 0..small().parity.rows.len() {
        for status in [Status::Pass, Status::Fail, Status::Skip, Status::NotApplicable] {
            let mut sample = small();
            sample.parity.rows[at].status = status;
            let rows = &sample.parity.rows;
            let unproven = rows.iter().filter(|row| evidence_gap(row).is_some()).count();
            let of = |status| sample.parity.count(status);
            let (pass, fail, skip) =
                (of(Status::Pass) - unproven, of(Status::Fail), of(Status::Skip));
            let text = markdown(&sample.run());
            let says = format!("Of {} checks, {pass} passed, {fail} failed,", rows.len());
            assert!(text.contains(&says), "{says}");
            let were = if skip == 1 { "was" } else { "were" };
            assert!(text.contains(&format!("{skip} {were} skipped and")), "{at} {status}");
            let page = html(&sample.run());
            // In the tables of checks the status is in the column before the case.
            let (_, page) = page.split_once("id=\"parity-all\"").expect("the tables are there");
            let page = page.replace(" class=\"w1\"", "").replace(" class=\"w2\"", "");
            let chips =
                |word: &str| page.matches(&format!("\">{word}</span></td><td><code>")).count();
            for (word, count) in
                [("PASS", pass), ("FAIL", fail), ("UNPROVEN", unproven), ("SKIP", skip)]
            {
                assert_eq!(chips(word), count, "the full tables have a line for each {word}");
            }
        }
    }
}

#[test]
fn edited_csv_changes_the_prose() {
    let check = |csv: String, from: &str, to: &str, before: &str, after: &str| {
        assert_eq!(csv.matches(from).count(), 1, "{from} in {csv}");
        let planted = csv.replace(from, to);
        let mut sample = small();
        assert!(markdown(&sample.run()).contains(before), "{before}");
        if csv.starts_with("op,") {
            sample.parity = read_parity_csv(&planted).unwrap();
        } else {
            sample.bench = read_bench_csv(&planted).unwrap();
        }
        for text in [markdown(&sample.run()), html(&sample.run())] {
            assert!(text.contains(after) && !text.contains(before), "{after}");
        }
    };
    let (parity, bench) = (parity_csv(&small().parity), bench_csv(&small().bench));
    let line = parity.lines().find(|line| line.contains("ffpa/d640,cpu")).unwrap().to_owned();
    check(
        parity.clone(),
        &line,
        &line.replace("FAIL", "SKIP"),
        "4 passed, 1 failed, 1 fell",
        "4 passed, 0 failed, 1 fell",
    );
    // A failure whose status is changed to PASS is not accepted.
    check(
        parity.clone(),
        &line,
        &line.replace("FAIL", "PASS"),
        "4 passed, 1 failed, 1 fell back to other kernels, 1 claims",
        "4 passed, 0 failed, 1 fell back to other kernels, 2 claim ",
    );
    check(bench.clone(), "61.4", "88.8", "25.6 % to 61.4 %", "25.6 % to 88.8 %");
    check(bench.clone(), "180.25", "99.5", "180.2 GFLOP/s", "99.50 GFLOP/s");
    // An installed kernel: its speed compared with firstlight's own, and whether it is ready.
    let (two, slower) = (["2.00×", "3.00×"], bench.replace(",2.46,", ",3.69,"));
    let mut sample = small();
    assert!(markdown(&sample.run()).contains(two[0]));
    sample.bench = read_bench_csv(&slower).unwrap();
    assert!(markdown(&sample.run()).contains(two[1]) && !markdown(&sample.run()).contains(two[0]));
    let flash = parity.lines().find(|line| line.contains(",torch.sdpa.flash,")).unwrap().to_owned();
    let ready = "1 of 3 installed kernels is ready here: torch.sdpa.math";
    let both = "2 of 3 installed kernels are ready here: torch.sdpa.math, torch.sdpa.flash";
    check(
        parity.clone(),
        &flash,
        "attention,edge/t1,cpu,torch.sdpa.flash,f32,PASS,,1e-7,1e-7,0.0001,1,1,torch 2.9.0,flash x1,",
        ready,
        both,
    );
    let passed = flash.replace(",FALLBACK,", ",PASS,");
    let gone = "Do not rely on [torch.sdpa.flash](#installed) (FALLBACK, 1 check)";
    let claims = "Do not rely on [torch.sdpa.flash](#installed) (UNPROVEN, 1 check)";
    let mut sample = small();
    assert!(markdown(&sample.run()).contains(gone));
    sample.parity = read_parity_csv(&parity.replace(&flash, &passed)).unwrap();
    assert!(markdown(&sample.run()).contains(claims), "{}", markdown(&sample.run()));
    assert!(markdown(&sample.run()).contains(ready));
}

#[test]
fn failing_installed_kernel_is_not_counted_as_own() {
    let mut sample = small();
    sample.parity.rows.retain(|row| row.peer.is_some() || evidence_gap(row).is_none());
    sample.parity.rows.retain(|row| row.status != Status::Fail);
    sample.doctor.findings.clear();
    let text = markdown(&sample.run());
    let says =
        "1 check fell back to other kernels; every one of these checks is of an installed kernel.";
    assert!(text.contains(says), "{text}");
    assert!(text.contains("| **attention** | PASSES |") && !text.contains("Repair: "), "{text}");
}

#[test]
fn r4_19_the_verdict_follows_from_the_evidence() {
    let check = |change: &dyn Fn(&mut Sample), expect: Verdict| {
        let mut sample = small();
        sample.parity.rows.retain(|row| row.status == Status::Pass && row.launches > 0);
        sample.parity.rows.iter_mut().for_each(|row| row.backend = BackendKind::Cuda);
        sample.doctor.findings.retain(|finding| finding.severity == Severity::Info);
        sample.doctor.envs.iter_mut().for_each(|env| env.problems.clear());
        sample.manifest.not_run.clear();
        sample.bench.not_timed.clear();
        sample.model_speed.not_timed.clear();
        change(&mut sample);
        assert_eq!(Verdict::of(&sample.run()), expect);
        let plain = report::terminal::summary(&sample.run(), report::terminal::Style::default());
        assert!(plain.contains(&format!("verdict: {expect}.")), "{plain}");
    };
    let all = small();
    check(&|_| (), Verdict::Verified);
    // Passes on the CPU do not verify the GPU, and a machine without a GPU has another verdict.
    let on_processor = |sample: &mut Sample| {
        sample.parity.rows.iter_mut().for_each(|row| row.backend = BackendKind::Cpu);
    };
    check(&on_processor, Verdict::GpuNotVerified);
    check(
        &|sample| {
            on_processor(sample);
            sample.doctor.machine.gpus.clear();
        },
        Verdict::ProcessorOnly,
    );
    check(&|sample| sample.parity.rows.push(all.parity.rows[3].clone()), Verdict::Verified);
    check(&|sample| sample.parity.rows.push(all.parity.rows[6].clone()), Verdict::Partial);
    check(&|sample| sample.manifest.not_run = all.manifest.not_run.clone(), Verdict::Partial);
    check(&|sample| sample.bench.not_timed = all.bench.not_timed.clone(), Verdict::Partial);
    let model = all.model_speed.not_timed.clone();
    check(&|sample| sample.model_speed.not_timed = model.clone(), Verdict::Partial);
    check(&|sample| sample.doctor.envs = all.doctor.envs.clone(), Verdict::Partial);
    check(&|sample| sample.parity.rows.clear(), Verdict::NotVerified);
    check(&|sample| sample.parity.rows = vec![all.parity.rows[6].clone()], Verdict::NotVerified);
    check(&|sample| sample.parity.rows.push(all.parity.rows[2].clone()), Verdict::Failing);
    check(&|sample| sample.parity.rows.push(all.parity.rows[7].clone()), Verdict::Failing);
    check(&|sample| sample.doctor.findings = all.doctor.findings.clone(), Verdict::Failing);
    check(&|sample| sample.manifest.state = RunState::Incomplete, Verdict::Incomplete);
    let doctor_only = Verdict::of(&Run {
        doctor: &facts::DoctorReport { findings: vec![], ..all.doctor.clone() },
        ..all.doctor_only()
    });
    assert_eq!(doctor_only, Verdict::NotVerified);
}

#[test]
fn verdict_names_the_gpu_and_the_verified_kernels() {
    let check = |change: &dyn Fn(&mut Sample), title: &str, scope: &str| {
        let mut sample = small();
        change(&mut sample);
        let run = sample.run();
        let (page, text) = (html(&run), markdown(&run));
        let head = page.split("</header>").next().unwrap_or_default();
        let head = head.replace("&#39;", "'");
        assert!(head.contains(&format!("<h1>{title}</h1>")) && head.contains(scope), "{head}");
        let top: Vec<&str> = text.lines().take(8).collect();
        assert!(top[0].contains(title) && top.join(" ").contains(scope), "{top:?}");
        let plain = report::terminal::summary(&run, report::terminal::Style::default());
        let end: Vec<&str> = plain.lines().rev().take(6).collect();
        let end = end.into_iter().rev().collect::<Vec<_>>().join(" ");
        assert!(end.contains(scope), "{end}");
    };
    let title = "NVIDIA GH200 480GB, driver 570.148.08";
    check(
        &|_| (),
        title,
        "Verified: the processor's kernels; nothing was verified on NVIDIA GH200 480GB.",
    );
    check(
        &|sample| sample.parity.rows[0].backend = BackendKind::Cuda,
        title,
        "Verified: the kernels on NVIDIA GH200 480GB and the processor's kernels.",
    );
    check(
        &|sample| {
            sample.doctor.machine.gpus.clear();
            sample.doctor.machine.driver = None;
        },
        "No GPU visible",
        "Verified: the processor's kernels; no GPU is visible to this process.",
    );
    check(
        &|sample| {
            let gpu = sample.doctor.machine.gpus[0].clone();
            sample.doctor.machine.gpus = vec![gpu; 8];
        },
        "8 × NVIDIA GH200 480GB, driver 570.148.08",
        "nothing was verified on 8 × NVIDIA GH200 480GB.",
    );
}

#[test]
fn long_run_has_a_short_markdown_and_a_complete_page() {
    let mut sample = small();
    let (check, timing) = (sample.parity.rows[0].clone(), sample.bench.rows[0].clone());
    for at in 0..3000 {
        let case = format!("edge/{at}");
        sample.parity.rows.push(facts::ParityRow { case, ..check.clone() });
    }
    for at in 0..400 {
        let case = format!("prefill-{at}");
        sample.bench.rows.push(facts::BenchRow { case, ..timing.clone() });
        sample.doctor.findings.push(sample.doctor.findings[1].clone());
    }
    let (text, page) = (markdown(&sample.run()), html(&sample.run()));
    assert!(text.lines().count() <= 300, "{} lines", text.lines().count());
    assert!(text.contains("report.html"), "{text}");
    assert!(page.contains("edge/2999") && page.contains("prefill-399"));
}

#[test]
fn passes_are_collapsed_and_empty_sections_omitted() {
    let mut sample = small();
    sample.parity.rows.retain(|row| row.status == Status::Pass && row.launches > 0);
    sample.doctor.model = None;
    sample.doctor.matrix = None;
    let page = html(&sample.run());
    let (before, after) = page.split_once("id=\"figure-parity-attention\"").expect("a picture");
    let opened = before.matches("<details").count() - before.matches("</details>").count();
    assert_eq!(opened, 1, "folded");
    assert!(!after.is_empty());
    // A chart with failures is expanded.
    let failing = html(&small().run());
    let (before, _) = failing.split_once("id=\"figure-parity-attention\"").expect("a picture");
    assert_eq!(before.matches("<details").count(), before.matches("</details>").count());
    for id in ["model", "matrix"] {
        assert!(!page.contains(&format!("href=\"#{id}\"")), "{id}");
    }
    let alone = html(&small().doctor_only());
    for id in ["bench", "parity", "installed", "model-speed"] {
        assert!(!alone.contains(&format!("href=\"#{id}\"")), "{id}");
    }
    // The chart of speeds is above its table.
    let speed = failing.split_once("id=\"bench\"").expect("a section").1;
    assert!(speed.find("<svg") < speed.find("<table"));
}

#[test]
fn r4_18_dirty_tree_is_recorded() {
    let mut sample = small();
    let commit = "1cf73e8000000000000000000000000000000000";
    let row = |sample: &Sample| {
        let text = markdown(&sample.run());
        text.lines().find(|line| line.starts_with("| Built from |")).map(str::to_owned)
    };
    let dirty = format!("| Built from | `{commit}` with uncommitted changes |");
    assert_eq!(row(&sample), Some(dirty));
    sample.manifest.built_from.as_mut().unwrap().dirty = false;
    assert_eq!(row(&sample), Some(format!("| Built from | `{commit}` |")));
}

#[test]
fn r1_13_pending_entries_are_counted() {
    let check = |change: &dyn Fn(&mut Sample), done: usize, pending: usize, limits: usize| {
        let mut sample = small();
        change(&mut sample);
        let text = markdown(&sample.run());
        let entries =
            |number| format!("{number} {}", if number == 1 { "entry" } else { "entries" });
        let (done, pending, limits) = (entries(done), entries(pending), entries(limits));
        let says = format!("Done: {done}. Pending: {pending}. Limits: {limits}.");
        assert!(text.contains(&says), "{says}\n{text}");
        let next = format!("left out: [{}](#still-pending)", pending.replace(' ', " pending "));
        assert!(text.contains(&next), "{next}\n{text}");
    };
    check(&|_| (), 4, 4, 4);
    check(&|sample| sample.manifest.stages.truncate(2), 2, 4, 4);
    check(&|sample| sample.manifest.not_run.clear(), 4, 3, 4);
    check(&|sample| sample.bench.not_timed.push("kda f16: no".into()), 4, 5, 4);
    check(&|sample| sample.doctor.machine.notes.clear(), 4, 4, 3);
    // A skip whose status is changed to N/A moves from pending to limits.
    check(&|sample| sample.parity.rows[6].status = Status::NotApplicable, 4, 3, 5);
}

#[test]
fn r2_10_speeds_are_compared_only_within_one_run() {
    let mut sample = small();
    assert!(markdown(&sample.run()).contains("| 1.23 ms | `torch.sdpa.math` | 2.46 ms | 2.00× |"));
    sample.bench.rows.retain(|row| row.peer.is_some());
    let text = markdown(&sample.run());
    assert!(text.contains("| – | – | `torch.sdpa.math` | 2.46 ms | – |"), "{text}");
    assert!(!text.contains('×'), "{text}");
    sample.bench.rows.clear();
    assert!(!markdown(&sample.run()).contains("torch.sdpa.math` | 2.46"));
}

#[test]
fn no_superlatives_and_no_speed_without_measurements() {
    check_every_run(|name, run| {
        let text = markdown(run).to_lowercase();
        for word in [
            "excellent",
            "perfect",
            "blazing",
            "outstanding",
            "production-ready",
            "flawless",
            "impressive",
        ] {
            assert!(!text.contains(word), "{name}: {word}");
        }
    });
    let text = markdown(&small().doctor_only());
    for word in ["GFLOP", "passed,", "kernel runs"] {
        assert!(!text.contains(word), "{word}");
    }
}

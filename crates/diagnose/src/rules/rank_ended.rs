use super::Rule;
use facts::{Confidence, Finding, FleetReport, RankPart, Severity};

pub(super) const RULE: Rule = Rule {
    id: "rank-ended",
    title: "the check of one rank did not come to its end",
    about: "\
`firstlight check --fleet` runs one check a rank, each in a process of its own beside the one that speaks with
rank 0. A check that crashes or is killed spoils its own part; a rank whose connection is lost, or that is
silent for longer than a few seconds, ends the others too, because nobody else would free the nodes.

A node that loses a rank where others work is out of memory, lost its network or its GPU, or was taken away by
the scheduler. Look at the kernel's log there and at the scheduler's, then check that node alone.",
    remedy: |_| commands(),
    check_fleet: Some(|fleet: &FleetReport| fleet.ranks.iter().filter_map(judge).collect()),
    ..Rule::BLANK
};

fn judge(part: &RankPart) -> Option<Finding> {
    let why = part.broke.as_ref()?;
    let title = format!("the check of rank {} ({}) did not come to its end", part.rank, part.host);
    let draft = RULE.finding(Severity::Error, Confidence::Certain, title);
    let draft = draft.evidence(why, format!("the process of rank {}", part.rank));
    Some(
        draft
            .cause("Its process ended, or did not answer, before its part was done.")
            .fix(commands())
            .finish(),
    )
}

fn commands() -> Vec<String> {
    vec![
        "# on that node:".to_owned(),
        "sudo dmesg | grep -E 'NVRM|Xid|Out of memory'".to_owned(),
        "firstlight check --quick".to_owned(),
    ]
}

use super::Rule;
use facts::{Confidence, Finding, FleetReport, RankPart, Severity};

pub(super) const RULE: Rule = Rule {
    id: "rank-ended",
    title: "the check of one rank did not finish",
    about: "\
`firstlight check --fleet` runs one check per rank, in a separate process from the one that communicates with rank 0. A
check that crashes or is killed affects only its own results. A rank that loses its connection or stops answering for a
few seconds also ends the others, so that the nodes are freed.

A node that loses a rank while the others work is out of memory, lost its network or its GPU, or was preempted by the
scheduler. Read its kernel log and the scheduler's log, then check that node alone.",
    remedy: |_| commands(),
    check_fleet: Some(|fleet: &FleetReport| fleet.ranks.iter().filter_map(judge).collect()),
    ..Rule::BLANK
};

fn judge(part: &RankPart) -> Option<Finding> {
    let why = part.broke.as_ref()?;
    let title = format!("the check of rank {} ({}) did not finish", part.rank, part.host);
    let draft = RULE.finding(Severity::Error, Confidence::Certain, title);
    let draft = draft.evidence(why, format!("the process of rank {}", part.rank));
    Some(
        draft
            .cause("Its process ended, or stopped answering, before the check was complete.")
            .fix(commands())
            .done(),
    )
}

fn commands() -> Vec<String> {
    vec![
        "# on that node:".to_owned(),
        "sudo dmesg | grep -E 'NVRM|Xid|Out of memory'".to_owned(),
        "firstlight check --quick".to_owned(),
    ]
}

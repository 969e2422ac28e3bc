use facts::Dist;
pub(crate) use knowledge::Requirement;

/// A requirement line, with its package name as PEP 503 normalises it; `None` for anything else.
pub(crate) fn parse(line: &str) -> Option<Requirement> {
    let mut requirement = Requirement::parse(line)?;
    requirement.name = Dist::normalise(&requirement.name);
    Some(requirement)
}

/// The requirement on another package in a distribution's METADATA that applies to this architecture.
pub(crate) fn required(dist: &Dist, name: &str, arm: bool) -> Option<Requirement> {
    let wanted = Dist::normalise(name);
    dist.requires
        .iter()
        .filter_map(|line| parse(line))
        .find(|requirement| requirement.name == wanted && requirement.applies(arm))
}

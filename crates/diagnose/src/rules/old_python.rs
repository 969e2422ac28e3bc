use super::{Context, Need, Rule, Text};
use facts::{Confidence, Finding, PyEnv, Severity};
use knowledge::minor_of;

pub(super) const RULE: Rule = Rule {
    id: "old-python",
    title: "a Python below 3.11",
    about: "\
Advice only: an older Python breaks nothing that is installed. torch.compile works on Python 3.10 too, even if a setup
script claims otherwise. An older Python limits which releases can be installed: wheels of torch 2.9 to 2.14 begin at
Python 3.10, those of torch 2.15 at 3.11, and Python 3.10 has had no security fixes since October 2026.

It shows, when a newer torch is asked for, as
  ERROR: Could not find a version that satisfies the requirement torch==2.15.0
or, without a message, as an older torch being installed.

Create a new environment with Python 3.12 at the next upgrade; there is no need to change a working one.",
    links: &["https://devguide.python.org/versions/"],
    texts: &[Text::new("Python {version} is below recommended", "Python 3.10 is below recommended 3.11+ (torch.compile unavailable)")],
    role: super::Role::Notice,
    remedy: |_| vec!["uv venv --python 3.12".into()],
    needs: &[Need::Environment],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn check(context: &Context) -> Vec<Finding> {
    context.envs.iter().filter_map(judge).collect()
}

fn judge(env: &PyEnv) -> Option<Finding> {
    let fact = env.interpreter.version.as_ref()?;
    let python = minor_of(&fact.value)?;
    if python >= (3, 11) {
        return None;
    }
    let newest = knowledge::torch_series::all()
        .iter()
        .rev()
        .find(|row| (row.python.0..=row.python.1).contains(&python));
    let cause = match newest {
        Some(row) => format!(
            "Everything installed works; the newest torch with wheels for it is {}.{}.",
            row.torch.0, row.torch.1
        ),
        None => "Everything installed works; no torch 2 release has wheels for it.".to_owned(),
    };
    let mut draft = RULE
        .finding(
            Severity::Info,
            Confidence::Certain,
            format!(
                "Python {} in {}: advice only, 3.11 or newer keeps more releases open",
                fact.value, env.root
            ),
        )
        .evidence(format!("Python {}", fact.value), fact.source.clone());
    if let Some(row) = newest {
        draft = draft.evidence(
            format!(
                "torch {}.{} has wheels for Python {}.{}",
                row.torch.0, row.torch.1, python.0, python.1
            ),
            row.source.to_string(),
        );
    }
    Some(draft.cause(cause).finish())
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, env, machines};
    use facts::{Confidence::*, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let python = |version: &str| vec![env("/v").python(version).build()];
        vec![
            Case::new("row R0-04", machines::gh200(), python("3.10.12")).finds(
                Info,
                Certain,
                &["Python 3.10.12 in /v: advice only", "newest torch with wheels for it is 2.14"],
            ),
            Case::new("3.9", machines::x86(), python("3.9.18")).finds(Info, Certain, &["is 2.8"]),
            Case::new("3.7", machines::x86(), python("3.7.17")).finds(
                Info,
                Certain,
                &["no torch 2 release"],
            ),
            Case::new("3.11", machines::x86(), python("3.11.0")),
            Case::new("3.12", machines::h200(), python("3.12.3")),
            Case::new("an interpreter of unknown version", machines::x86(), {
                let mut env = env("/v").build();
                env.interpreter.version = None;
                vec![env]
            }),
        ]
    }
}

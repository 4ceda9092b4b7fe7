//! `survey`: what is on this machine, as text or as the value.

use std::path::PathBuf;

use repave_plan::policy::Policy;
use repave_plan::report::EXIT_DONE;
use repave_plan::survey::Survey;
use repave_survey::root::Root;
use repave_survey::{Detail, SurveyRequest, read_survey};
use repave_systemd::paths::STATE;

use crate::Now;
use crate::cli::SurveyArgs;
use crate::host::{RootTools, open_root};
use crate::output::{print, print_json};
use crate::policy_files::{PolicyFilesError, read_policy};
use crate::survey_text::survey_text;

/// Prints the survey.
pub fn run(args: &SurveyArgs, now: Now) -> anyhow::Result<u8> {
    let root = open_root(&args.host.root, "a survey")?;
    let survey = survey_host(&root, None, now)?;
    match args.json {
        true => print_json(&survey)?,
        false => print(&survey_text(&survey))?,
    }
    Ok(EXIT_DONE)
}

/// Surveys the host for a policy.
pub fn survey_host(root: &Root, policy: Option<&Policy>, now: Now) -> anyhow::Result<Survey> {
    Ok(read_survey(&SurveyRequest {
        root,
        tools: &RootTools::of(root),
        now: now.time,
        state_dir: STATE,
        policy,
        detail: Detail::Full,
    })?)
}

/// The policy first: what is wrong with it is cheaper to say than a survey is to make.
pub fn policy_and_survey(
    root: &Root,
    files: &[PathBuf],
    now: Now,
) -> anyhow::Result<(Policy, Survey)> {
    let policy = read_policy(root, files).map_err(|error| match error {
        PolicyFilesError::Policy(error) => anyhow::Error::from(error),
        other => other.into(),
    })?;
    let survey = survey_host(root, Some(&policy), now)?;
    Ok((policy, survey))
}

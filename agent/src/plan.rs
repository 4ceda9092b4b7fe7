//! `plan`: the picture of what would be done, and the digest to approve. Writes nothing.

use std::path::Path;

use anyhow::Context as _;
use repave_plan::essence::approval_digest;
use repave_plan::picture::{picture, picture_preview, plan_json};
use repave_plan::plan::Plan;
use repave_plan::planner;
use repave_plan::policy::Policy;
use repave_plan::refusal::Refusal;
use repave_plan::report::EXIT_DONE;
use repave_plan::survey::Survey;
use repave_plan::units::{BlockSize, Digest};
use repave_survey::read_image_survey;
use repave_survey::root::Root;
use serde_json::json;

use crate::Now;
use crate::cli::PlanArgs;
use crate::host::open_root;
use crate::output::{print, print_json};
use crate::policy_files::{PolicyFilesError, read_policy};
use crate::preflight::preflight;
use crate::survey::policy_and_survey;

/// Prints the plan, or the preview of an image.
pub fn run(args: &PlanArgs, now: Now) -> anyhow::Result<u8> {
    if let (Some(image), Some(block)) = (&args.image, args.block) {
        told(args, plan_image(args, image, BlockSize(block), now))?;
        return Ok(EXIT_DONE);
    }
    let root = open_root(&args.host.root, "a plan")?;
    let (policy, survey) = policy_and_survey(&root, &args.policy.policy, now)?;
    let (plan, digest) = told(args, make(&policy, &survey))?;
    match args.json {
        true => print(&(plan_json(&plan, &digest).context("write the plan as JSON")? + "\n"))?,
        false => print(&picture(&plan, &digest))?,
    }
    // After the picture: what is wrong with the host does not make the plan another one.
    preflight(&root, &policy, &survey, &plan)?;
    if !args.json {
        print(&format!("to go on  repave-agent arm --approve {digest}\n"))?;
    }
    Ok(EXIT_DONE)
}

/// With `--json` a refusal is a value too, in the place of the plan.
fn told<T>(args: &PlanArgs, result: anyhow::Result<T>) -> anyhow::Result<T> {
    if let Err(error) = &result
        && let Some(refusal) = error.downcast_ref::<Refusal>()
        && args.json
    {
        print_json(&json!({
            "refusal": refusal,
            "name": refusal.name(),
            "message": refusal.to_string(),
            "way_out": refusal.way_out(),
        }))?;
    }
    result
}

fn plan_image(args: &PlanArgs, image: &Path, block: BlockSize, now: Now) -> anyhow::Result<()> {
    // The drop-ins of this machine, when none are named; nothing else of it is looked at.
    let root = Root::at("/").context("open /")?;
    let policy = read_policy(&root, &args.policy.policy).map_err(|error| match error {
        PolicyFilesError::Policy(error) => anyhow::Error::from(error),
        other => other.into(),
    })?;
    let survey = read_image_survey(image, block, now.time)?;
    let preview = planner::preview(&policy, &survey)?;
    match args.json {
        true => print_json(&json!({ "preview": preview })),
        false => print(&picture_preview(&preview)),
    }
}

/// The plan and the digest of its essence.
pub fn make(policy: &Policy, survey: &Survey) -> anyhow::Result<(Plan, Digest)> {
    let plan = planner::plan(policy, survey)?;
    let digest = approval_digest(&plan).context("make the digest of the plan")?;
    Ok((plan, digest))
}

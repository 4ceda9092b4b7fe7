//! Plans on image files: the same verdicts, and what cannot be known is said.

use repave_plan::picture::picture_preview;
use repave_plan::planner::{plan, preview};
use repave_plan::step::StepName;
use repave_plan::survey::Survey;

use crate::fixtures::*;
use crate::inputs::{inputs, plan_of, policy, policy_with};

/// The same disk as a file: no host, no pool, no containerd, no kernel.
fn image(survey: &Survey) -> Survey {
    let mut survey = survey.clone();
    survey.host = None;
    survey.pools = Vec::new();
    survey.containerd = None;
    for disk in &mut survey.disks {
        disk.name = "disk.img".to_owned();
        disk.serial = None;
        disk.wwn = None;
        disk.uses = Vec::new();
        disk.read_only = false;
        for part in &mut disk.partitions {
            part.kernel = None;
            part.uses = Vec::new();
        }
    }
    survey
}

#[test]
fn an_image_gives_the_same_table_and_no_digest() {
    let whole = plan_of(&worker()).unwrap();
    let seen = preview(&policy(POLICY), &image(&worker())).unwrap();
    assert_eq!(seen.new, whole.new);
    assert_eq!(seen.touched, whole.touched);
    assert_eq!(seen.steps, whole.steps[..3]);
    let names: Vec<StepName> = seen.steps.iter().map(|s| s.name()).collect();
    assert_eq!(
        names,
        [
            StepName::LabelClear,
            StepName::TableWrite,
            StepName::KernelTable
        ]
    );
    assert_eq!(seen.unknown.len(), 4);
    let text = picture_preview(&seen);
    assert!(!text.contains("sha256:"), "{text}");
    assert!(text.contains("cannot be approved"), "{text}");
}

#[test]
fn what_the_policy_wants_of_the_device_is_unknown_and_not_wrong() {
    let text = policy_with("pool = \"tank\"\n\n", "pool = \"tank\"\nserial = \"X\"\n\n");
    let seen = preview(&policy(&text), &image(&worker())).unwrap();
    assert!(
        seen.unknown.iter().any(|u| u.contains("serial number")),
        "{seen:?}"
    );
    assert!(plan(&policy(&text), &worker()).is_err());
}

/// What a refusal stands on decides whether an image can show it.
#[test]
fn verdicts_of_the_scenarios_on_images() {
    let of_the_host_or_pool = [
        "13-", "14-", "15-", "19-", "20-", "21-", "22-", "25-", "27-", "28-", "29-", "33-", "34-",
        "35-", "39-", "44-", "45-", "46-",
    ];
    for input in inputs() {
        let policy = policy(&input.policy);
        let whole = plan(&policy, &input.survey).map_err(|r| r.name());
        let seen = preview(&policy, &image(&input.survey)).map_err(|r| r.name());
        if of_the_host_or_pool
            .iter()
            .any(|n| input.name.starts_with(n))
        {
            assert!(whole.is_err() && seen.is_ok(), "{}", input.name);
        } else {
            assert_eq!(whole.map(|p| p.new), seen.map(|p| p.new), "{}", input.name);
        }
    }
}

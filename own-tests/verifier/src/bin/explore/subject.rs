//! The subject of an exploration: stress runs or a small scope, with or without a mutant.

use leasehold_sim::SimOptions;
use leasehold_sim::tools::Scheduling;
use leasehold_verifier::{
    ANSWERING_REPLICA, CARELESS_RESOURCE, IN_EVERY_BUILD, MutantInfo, OLDER_EPOCH,
    READ_WITHOUT_CLAIM, SmallScope, Stress, StressRun,
};

use crate::args::Args;
use crate::planted;

/// What holds even if a replica that lags answers.
const SAFETY: &[&str] = &["S1", "S2", "S3", "S4", "S5"];

/// What the servers do to their data and clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Variant {
    pub(crate) out_of_model: bool,
}

impl Variant {
    pub(crate) const ALL: [Self; 2] = [
        Self {
            out_of_model: false,
        },
        Self { out_of_model: true },
    ];

    /// These stress runs in this variant.
    pub(crate) fn stress(self, stress: Stress) -> Stress {
        match self.out_of_model {
            true => stress.out_of_model(),
            false => stress,
        }
    }

    /// Its flag, after a space; empty if it has none.
    pub(crate) const fn flags(self) -> &'static str {
        match self.out_of_model {
            true => " --out-of-model",
            false => "",
        }
    }
}

/// A kind of runs.
#[derive(Clone, Debug)]
pub(crate) enum Subject {
    Stress(Stress),
    Scope(SmallScope),
}

impl Subject {
    /// The subject that the options choose.
    pub(crate) fn of(args: &Args, mutant: Option<MutantInfo>) -> Result<Self, String> {
        let Some(scope) = args.scope else {
            let mut stress = stress(mutant);
            if args.replicas_answer {
                stress = stress.with_answering_replicas().only(SAFETY);
            }
            return Ok(Self::Stress(stress));
        };
        if mutant.is_some_and(|it| it.out_of_model || IN_EVERY_BUILD.contains(&it.name)) {
            return Err("a small scope cannot find this mutant".into());
        }
        Ok(Self::Scope(scope))
    }

    pub(crate) fn run(
        &self,
        variant: Variant,
        options: SimOptions,
        scheduling: Scheduling,
    ) -> StressRun {
        match self {
            Self::Stress(stress) => variant.stress(stress.clone()).run(options, scheduling),
            Self::Scope(scope) => scope.run(options, scheduling),
        }
    }
}

/// The stress runs that can find a mutant.
pub(crate) fn stress(mutant: Option<MutantInfo>) -> Stress {
    let Some(mutant) = mutant else {
        return Stress::new();
    };
    let mut stress = Stress::new().only(mutant.promises);
    if mutant.out_of_model {
        stress = stress.out_of_model();
    }
    match mutant.name {
        CARELESS_RESOURCE => stress.with_careless_resource(),
        READ_WITHOUT_CLAIM => stress.without_claims(),
        ANSWERING_REPLICA | OLDER_EPOCH => stress.with_answering_replicas(),
        _ => stress,
    }
}

/// The command that repeats the run of a tape, with the same options.
pub(crate) fn replay_command(
    args: &Args,
    variant: Variant,
    tape: &impl std::fmt::Display,
) -> String {
    let mutant = args.mutant.as_deref();
    let mut command = match mutant.filter(|it| !IN_EVERY_BUILD.contains(it)) {
        Some(_) => BUILD.to_owned(),
        None => "cargo run --release".to_owned(),
    };
    command.push_str(" -p leasehold-verifier --bin explore --");
    if let Some(scope) = args.scope {
        command.push_str(&format!(" --scope {scope}"));
    }
    command.push_str(variant.flags());
    if args.replicas_answer {
        command.push_str(" --replicas-answer");
    }
    if let Some(mutant) = &args.mutant {
        command.push_str(&format!(" --mutant {mutant}"));
    }
    command.push_str(&format!(" --replay {tape}"));
    command
}

/// How to build `explore` with the mutants.
pub(crate) const BUILD: &str =
    "cargo run --release --manifest-path \"$(.ci/plant)/Cargo.toml\" --target-dir target";

/// The mutants of this build that stress runs must find.
pub(crate) fn mutants() -> impl Iterator<Item = MutantInfo> {
    let planted = planted::mutants().filter(|(_, rule)| !MutantInfo::has_own_exploration(rule));
    let names = planted
        .map(|(name, _)| name)
        .chain(IN_EVERY_BUILD.iter().copied());
    names.filter_map(MutantInfo::of)
}

/// Activates a mutant for the rest of the process.
pub(crate) fn activate(name: &str) -> Result<MutantInfo, String> {
    let info = mutants().find(|mutant| mutant.name == name);
    let compiled_in = Some(name).filter(|it| !IN_EVERY_BUILD.contains(it));
    info.filter(|_| planted::plant(compiled_in)).ok_or_else(|| {
        format!(
            "no mutant {name:?}; --list-mutants lists those of this build. Others are in a build by \
             {BUILD} -p leasehold-verifier --bin explore"
        )
    })
}

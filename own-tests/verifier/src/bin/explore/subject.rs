//! The subject of an exploration: stress runs or a small scope, with or without a mutant.

use leasehold_sim::{Scheduling, SimOptions};
use leasehold_verifier::{
    ANSWERING_REPLICA, CARELESS_RESOURCE, IN_EVERY_BUILD, MutantInfo, OLDER_EPOCH,
    READ_WITHOUT_CLAIM, SmallScope, Stress, StressRun,
};

use crate::args::Args;

/// What holds even if a replica that lags answers.
const SAFETY: &[&str] = &["S1", "S2", "S3", "S4", "S5"];

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
            return Ok(Self::Stress(if args.out_of_model {
                stress.out_of_model()
            } else {
                stress
            }));
        };
        if mutant.is_some_and(|it| it.out_of_model || IN_EVERY_BUILD.contains(&it.name)) {
            return Err("a small scope cannot find this mutant".into());
        }
        let (clients, calls) = (scope.clients as usize, scope.steps as usize);
        Ok(Self::Scope(SmallScope::new(clients, calls)))
    }

    pub(crate) fn run(&self, options: SimOptions, scheduling: Scheduling) -> StressRun {
        match self {
            Self::Stress(stress) => stress.run(options, scheduling),
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
pub(crate) fn replay_command(args: &Args, tape: &impl std::fmt::Display) -> String {
    let mut command = String::new();
    let mutant = args.mutant.as_deref();
    let compiled_in = mutant.filter(|it| !IN_EVERY_BUILD.contains(it));
    if compiled_in.is_some() {
        command.push_str("RUSTFLAGS='--cfg leasehold_mutants' ");
    }
    command.push_str("cargo run --release ");
    if compiled_in.is_some() {
        command.push_str("--target-dir target/mutants ");
    }
    command.push_str("-p leasehold-verifier --bin explore --");
    if let Some(scope) = args.scope {
        command.push_str(&format!(" --scope {}x{}", scope.clients, scope.steps));
    }
    if args.out_of_model {
        command.push_str(" --out-of-model");
    }
    if args.replicas_answer {
        command.push_str(" --replicas-answer");
    }
    if let Some(mutant) = &args.mutant {
        command.push_str(&format!(" --mutant {mutant}"));
    }
    command.push_str(&format!(" --replay {tape}"));
    command
}

/// Activates a mutant for the rest of the process.
pub(crate) fn activate(name: &str) -> Result<MutantInfo, String> {
    let info = MutantInfo::named(name)
        .ok_or_else(|| format!("no mutant {name:?}; --list-mutants lists them"))?;
    #[cfg(leasehold_mutants)]
    {
        use leasehold_api::mutants::Mutant;
        if IN_EVERY_BUILD.contains(&name) {
            Mutant::clear();
            return Ok(info);
        }
        let mutant = Mutant::from_name(name)
            .ok_or_else(|| format!("this build does not contain the mutant {name:?}"))?;
        mutant.plant();
        Ok(info)
    }
    #[cfg(not(leasehold_mutants))]
    if IN_EVERY_BUILD.contains(&name) {
        Ok(info)
    } else {
        Err(format!(
            "this build does not contain the mutant {name:?}; build with \
             RUSTFLAGS=\"--cfg leasehold_mutants\""
        ))
    }
}

//! What is explored: the stress runs or a small scope, with or without a fault planted in it.

use leasehold_sim::{Scheduling, SimOptions};
use leasehold_verifier::{CARELESS_RESOURCE, Planted, SmallScope, Stress, StressRun};

use crate::args::Args;

/// Something with runs.
#[derive(Clone, Debug)]
pub(crate) enum Subject {
    Stress(Stress),
    Scope(SmallScope),
}

impl Subject {
    /// What was asked for.
    pub(crate) fn of(args: &Args, planted: Option<Planted>) -> Result<Self, String> {
        let Some(scope) = args.scope else {
            let stress = stress(planted);
            return Ok(Self::Stress(if args.out_of_model {
                stress.out_of_model()
            } else {
                stress
            }));
        };
        if planted.is_some_and(|fault| fault.out_of_model || fault.name == CARELESS_RESOURCE) {
            return Err("a small scope has nothing that this fault could show in".into());
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

/// The stress in which a fault shows.
pub(crate) fn stress(planted: Option<Planted>) -> Stress {
    let mut stress = Stress::new();
    if planted.is_some_and(|fault| fault.out_of_model) {
        stress = stress.out_of_model();
    }
    if planted.is_some_and(|fault| fault.name == CARELESS_RESOURCE) {
        stress = stress.with_careless_resource();
    }
    stress
}

/// The command that runs a tape of this subject again.
pub(crate) fn replay_command(args: &Args, tape: &impl std::fmt::Display) -> String {
    let mut command = String::new();
    let compiled_in = args.mutant.as_deref().filter(|it| *it != CARELESS_RESOURCE);
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
    if let Some(mutant) = &args.mutant {
        command.push_str(&format!(" --mutant {mutant}"));
    }
    command.push_str(&format!(" --replay {tape}"));
    command
}

/// Plants a fault for the rest of the process.
pub(crate) fn plant(name: &str) -> Result<Planted, String> {
    let fault = Planted::named(name)
        .ok_or_else(|| format!("there is no fault {name:?}; --list-mutants lists them"))?;
    #[cfg(leasehold_mutants)]
    {
        use leasehold_api::mutants::Mutant;
        if name == CARELESS_RESOURCE {
            Mutant::clear();
            return Ok(fault);
        }
        let mutant = Mutant::from_name(name).ok_or_else(|| format!("{name:?} is not compiled"))?;
        mutant.plant();
        Ok(fault)
    }
    #[cfg(not(leasehold_mutants))]
    if name == CARELESS_RESOURCE {
        Ok(fault)
    } else {
        Err(format!(
            "this build holds no planted faults; build with RUSTFLAGS=\"--cfg leasehold_mutants\" \
             to plant {name:?}"
        ))
    }
}

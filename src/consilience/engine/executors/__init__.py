"""How the work of many clients is carried out; executors differ in speed, never in what is computed."""

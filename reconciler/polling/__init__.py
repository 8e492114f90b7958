"""The reconciler's eyes: what the sender lists and answers, held against what we hold."""

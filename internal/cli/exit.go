package cli

import (
	"errors"

	"github.com/spf13/cobra"
)

// Exit statuses besides 0: all is well.
const (
	exitFailure = 1 // of most commands; of some an answer, as they document
	exitTrouble = 2 // where 1 is an answer, that there is none
)

// exitError ends the program with a status of its own. Without an error all has
// been said.
type exitError struct {
	status int
	err    error
}

// Error implements error.
func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

// Unwrap returns what the trouble is.
func (e *exitError) Unwrap() error { return e.err }

// usageError is a question that makes no sense; it ends the program as trouble.
type usageError struct{ error }

// Unwrap returns what is wrong with it.
func (e usageError) Unwrap() error { return e.error }

// exitStatus returns the status that an error ends the program with.
func exitStatus(err error) int {
	if err == nil {
		return 0
	}
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.status
	}
	if _, senseless := errors.AsType[usageError](err); senseless {
		return exitTrouble
	}
	return exitFailure
}

// trouble gives an error the status that says that there is no answer.
func trouble(err error) error {
	if _, answered := errors.AsType[*exitError](err); err == nil || answered {
		return err
	}
	return &exitError{exitTrouble, err}
}

// answers makes a command one whose status 1 is an answer: whatever goes wrong,
// its flags and arguments included, is trouble.
func answers(cmd *cobra.Command) *cobra.Command {
	run, args := cmd.RunE, cmd.Args
	cmd.RunE = func(cmd *cobra.Command, list []string) error { return trouble(run(cmd, list)) }
	cmd.Args = func(cmd *cobra.Command, list []string) error { return trouble(args(cmd, list)) }
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return trouble(err) })
	return cmd
}

package cli

import (
	"errors"

	"github.com/spf13/cobra"
)

// Exit statuses other than 0, which is success.
const (
	exitFailure = 1 // a failure of most commands; of some commands an answer, as they document
	exitTrouble = 2 // there is no answer, of commands where 1 is an answer; or the arguments are wrong
)

// exitError is an error that ends the program with a status. Without err nothing more is printed.
type exitError struct {
	status int
	err    error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func exitStatus(err error) int {
	if err == nil {
		return 0
	}
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.status
	}
	return exitFailure
}

// trouble returns err with the status exitTrouble, unless it has a status already.
func trouble(err error) error {
	if _, ok := errors.AsType[*exitError](err); err == nil || ok {
		return err
	}
	return &exitError{exitTrouble, err}
}

// answers changes a command whose status 1 is an answer: every error, of its flags
// and arguments too, ends with exitTrouble.
func answers(cmd *cobra.Command) *cobra.Command {
	run, args := cmd.RunE, cmd.Args
	cmd.RunE = func(cmd *cobra.Command, list []string) error { return trouble(run(cmd, list)) }
	cmd.Args = func(cmd *cobra.Command, list []string) error { return trouble(args(cmd, list)) }
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return trouble(flagError(cmd, err)) })
	return cmd
}

package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/answer/inspect"
)

// diffTimeout bounds the wait for a comparison, for which the daemon reads the kernel.
const diffTimeout = 3 * time.Minute

func newDiff(env Env) *cobra.Command {
	return answers(&cobra.Command{
		Use:   "diff",
		Short: "Compare the kernel with the rules that it should have; print what would be written",
		Long: `Compare the rules in the kernel with those that it should have, and print the steps that would make
them equal, in the language of the data plane. Nothing is written. Sluice repairs edits by other
programs at once, so that usually there is nothing to print. If the daemon writes without a pause, a
comparison is not possible; the command reports that.

Exit status: 0 they are equal; 1 they differ; 2 the comparison failed.`,
		Example: "  sluice diff\n  sluice diff && echo no difference",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), diffTimeout)
			defer cancel()
			return diff(ctx, env)
		},
	})
}

func diff(ctx context.Context, env Env) error {
	steps, err := show(env.Stdout, format{}, admin.DialNearest().Ask(ctx, "/diff", nil), prose[inspect.Step])
	if err != nil || steps == 0 {
		return err
	}
	return &exitError{status: exitFailure}
}

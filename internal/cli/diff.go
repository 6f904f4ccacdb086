package cli

import (
	"context"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/internal/inspect"
)

// diffTimeout bounds the wait for a comparison, for which the daemon reads the kernel.
const diffTimeout = 3 * time.Minute

// newDiff returns the command that compares the kernel with what should be.
func newDiff(env Env) *cobra.Command {
	return answers(&cobra.Command{
		Use:   "diff",
		Short: "Compare the kernel with what should be; print what would be written",
		Long: `Compare what is in the kernel now with what should be there, and print what would be written to
make it so, in the language of the data plane. Nothing is written. What other programs change is
repaired at once, so that usually there is nothing to print. While the daemon writes all the time
no two looks are of one moment; it says so then rather than print differences that are none.

Exit status: 0 they are equal; 1 they differ; 2 trouble, as of diff(1).`,
		Example: "  sluice diff\n  sluice diff && echo as it should be",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), diffTimeout)
			defer cancel()
			return diff(ctx, env)
		},
	})
}

func diff(ctx context.Context, env Env) error {
	answer, err := ask(ctx, "/diff", nil)
	if err != nil {
		return err
	}
	d, err := decode[inspect.Difference](answer)
	if err != nil || d.Steps == 0 {
		return err
	}
	if _, err := io.WriteString(env.Stdout, strings.TrimRight(d.Text, "\n")+"\n"); err != nil {
		return err
	}
	return &exitError{status: exitFailure}
}

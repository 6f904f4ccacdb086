package cli

import (
	"context"
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/internal/health"
)

func newStatus(env Env) *cobra.Command {
	o := newOutput(objectFormats())
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the state of the daemon on this node: health, mode and why, last sync, lag, repairs, failures",
		Long: `Show the state of the daemon of this network namespace: mode and why, source, the last write and
pending changes, comparisons and repairs, rules taken over, configuration, host settings, servers,
and problems with objects.

Exit status: 0 healthy; 1 not healthy, or starting; 2 the daemon cannot be asked: it does not run
here, does not answer, or the command does not run as root.`,
		Example: `  sluice status
  sluice status -o json | jq .lastSync
  sluice status >/dev/null && echo healthy`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), askTimeout)
			defer cancel()
			return status(ctx, o, env)
		},
	}
	o.register(cmd, cmd.Flags())
	return answers(cmd)
}

func status(ctx context.Context, o *output, env Env) error {
	var answer json.RawMessage
	if err := admin.DialNearest().Get(ctx, "/status", nil, &answer); err != nil {
		return err
	}
	s, err := admin.Decode[inspect.Status](answer)
	if err != nil {
		return err
	}
	if _, err := show(env.Stdout, o.format, answered(answer), prose[inspect.Status]); err != nil {
		return err
	}
	if s.Health.State != health.Healthy {
		return &exitError{status: exitFailure}
	}
	return nil
}

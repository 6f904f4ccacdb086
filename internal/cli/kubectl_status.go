package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/internal/fleet"
)

func (p *plugin) newStatus() *cobra.Command {
	o := newOutput(listFormats())
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the state of Sluice on every node, or in full on one node",
		Long: `Show the state of Sluice on every node in one table: first the nodes that did not answer, by reason,
then those that are not healthy, that differ from most others in version or mode, and that have
warnings. --node shows one node in full, as sluice status does there.

Exit status: 0 all are healthy; 1 some are not healthy, or starting; 2 some did not answer.`,
		Example: `  kubectl sluice status
  kubectl sluice status --node node-a
  kubectl sluice status -o json | jq -r '.items[] | select(.status.mode.name == "iptables").node'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if p.node == "" {
				return p.statusOfAll(cmd.Context(), o.format)
			}
			if o.encode == nil {
				cmd.Flags().Lookup("output").Changed = false // a table is not a form of one status
			}
			return p.run(cmd, args, p.only)
		},
	}
	o.register(cmd, cmd.Flags())
	return answers(cmd)
}

func (p *plugin) statusOfAll(ctx context.Context, f format) error {
	c, err := p.access.Connect()
	if err != nil {
		return err
	}
	pods, err := c.Pods(ctx)
	if err != nil {
		return err
	}
	all, err := c.Ask(ctx, pods, func(done int) { drawProgress(p.progress, done, len(pods)) })
	if err != nil {
		return err
	}
	if _, err := show(p.env.Stdout, f, answered(all...), rows[fleet.Answer]); err != nil {
		return err
	}
	summary, unhealthy, unanswered := fleet.Summary(all)
	if f.encode == nil {
		fmt.Fprintf(p.env.Stderr, "\n%s\n", summary)
	}
	switch {
	case unanswered > 0:
		return &exitError{status: exitTrouble}
	case unhealthy > 0:
		return &exitError{status: exitFailure}
	}
	return nil
}

// drawProgress draws a bar on a terminal, and erases it when everything is done.
func drawProgress(w io.Writer, done, all int) {
	const width = 40
	if w == nil {
		return
	}
	bar := strings.Repeat("#", width*done/all)
	line := fmt.Sprintf("[%-*s] %d of %d nodes", width, bar, done, all)
	if done == all {
		line = strings.Repeat(" ", len(line)) + "\r"
	}
	fmt.Fprintf(w, "\r%s", line)
}

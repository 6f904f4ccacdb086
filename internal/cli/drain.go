package cli

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/text"
)

// exitTimeUp is the exit status if a pod still has connections.
const exitTimeUp = 3

func newDrain(env Env) *cobra.Command {
	wait, o := 30*time.Second, newOutput(objectFormats())
	cmd := &cobra.Command{
		Use:     "drain POD",
		Short:   "Wait until a pod of this node has no connections",
		Long:    about("drain"),
		Example: "  sluice drain default/web-0 --wait 30s\n  sluice drain 10.244.1.5 -o json\n  sluice get draining",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("drain takes one pod, got %s", text.Count(len(args), "argument"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if wait <= 0 || wait > drain.MaxWait {
				return trouble(fmt.Errorf("--wait %s: want a time up to %s", wait, drain.MaxWait))
			}
			return drainPod(cmd.Context(), env, o.format, url.Values{"pod": args, "wait": {wait.String()}})
		},
	}
	cmd.Flags().DurationVar(&wait, "wait", wait, "time after which to give up, up to "+text.Duration(drain.MaxWait))
	o.register(cmd, cmd.Flags())
	return checked(cmd)
}

func drainPod(ctx context.Context, env Env, f format, query url.Values) error {
	var answer inspect.Drain
	for line, err := range admin.DialNearest().Ask(ctx, "/drain", query) {
		if err != nil {
			return err
		}
		if err := admin.Decode(line, &answer); err != nil {
			return err
		}
	}
	if answer.Pod == "" {
		return errors.New("the daemon ended before the pod was drained")
	}
	if _, err := show(env.Stdout, f, answered(answer), prose[inspect.Drain]); err != nil {
		return err
	}
	if !answer.Drained {
		return &exitError{exitTimeUp, nil}
	}
	return nil
}

// newDraining lists the waits that run.
func newDraining(env Env) *cobra.Command {
	o := newOutput(listFormats())
	cmd := &cobra.Command{
		Use:     "draining",
		Short:   "List pods of this node that are being drained",
		Long:    about("get draining"),
		Example: "  sluice get draining",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), askTimeout)
			defer cancel()
			n, err := show(env.Stdout, o.format, admin.DialNearest().Ask(ctx, "/draining", nil), rows[inspect.Draining])
			return noneOf("pod is being drained", n, err, env)
		},
	}
	o.register(cmd, cmd.Flags())
	return cmd
}

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/internal/health"
	"github.com/sluice-proxy/sluice/internal/text"
)

func newStatus(env Env, stdout io.Writer) *cobra.Command {
	var watch bool
	o := newOutput(objectFormats())
	stream := newOutput(append([]format{{name: "text"}}, streamFormats()...))
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "Show the state of the daemon on this node: health, mode and why, last sync, lag, repairs, failures",
		Long:    about("status"),
		Example: about("status: examples"),
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !watch {
				return status(cmd.Context(), o.format, env.Stdout)
			}
			if err := stream.Set(o.text); err != nil {
				return err
			}
			return watchStatus(cmd.Context(), stream.format, stdout, env.Stderr)
		},
	}
	o.register(cmd, cmd.Flags())
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "show it again and again, until interrupted; json as lines")
	return answers(cmd)
}

// watchStatus prints the state, or why there is none, until it is interrupted: in place of the last one on a terminal.
// In a format for programs the reason goes to stderr.
func watchStatus(ctx context.Context, f format, stdout, stderr io.Writer) error {
	const pause = 2 * time.Second
	var now bytes.Buffer
	safe := text.Safe(&now)
	p := newPrinter(safe, f, prose[inspect.Status])
	if f.encode == nil {
		stderr = safe
	}
	for at := time.Now(); ; at = time.Now() {
		answer, err := askStatus(ctx)
		if err == nil {
			err = errors.Join(p.print(answer), p.flush())
		}
		if ctx.Err() != nil {
			return nil // interrupted, as intended
		}
		if err != nil {
			fmt.Fprintf(stderr, "%s: %v\n", at.Format(time.TimeOnly), err)
		}
		if file := screen(stdout); file != nil && f.encode == nil {
			err = redraw(file, now.String())
			now.Reset()
		} else {
			_, err = now.WriteTo(stdout)
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

func askStatus(ctx context.Context) (answer json.RawMessage, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	err = admin.DialNearest().Get(ctx, "/status", nil, &answer)
	return answer, err
}

func status(ctx context.Context, f format, w io.Writer) error {
	answer, err := askStatus(ctx)
	if err != nil {
		return err
	}
	var s inspect.Status
	if err := admin.Decode(answer, &s); err != nil {
		return err
	}
	if _, err := show(w, f, answered(answer), prose[inspect.Status]); err != nil {
		return err
	}
	if s.Health.State != health.Healthy {
		return &exitError{status: exitFailure}
	}
	return nil
}

// diffTimeout bounds the wait for a comparison, for which the daemon reads the kernel.
const diffTimeout = 3 * time.Minute

func newDiff(env Env) *cobra.Command {
	return answers(&cobra.Command{
		Use:     "diff",
		Short:   "Compare the kernel with the rules that it should have; print the differences",
		Long:    about("diff"),
		Example: "  sluice diff\n  sluice diff && echo no difference",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), diffTimeout)
			defer cancel()
			steps, err := show(env.Stdout, format{}, admin.DialNearest().Ask(ctx, "/diff", nil), prose[inspect.Step])
			if err == nil && steps > 0 {
				err = &exitError{status: exitFailure}
			}
			return err
		},
	})
}

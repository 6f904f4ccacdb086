package cli

import (
	"context"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/preflight"
)

// newPreflight returns the command that tests whether Sluice can serve this node.
func newPreflight(env Env) *cobra.Command {
	fs := pflag.NewFlagSet("preflight", pflag.ContinueOnError)
	flags, o := config.NewFlags(fs), newOutput(listFormats())
	cmd := &cobra.Command{
		Use:   "preflight",
		Short: "Test whether Sluice can serve this node, before you start it; changes nothing",
		Long: `Test whether Sluice can serve this node with a configuration: kernel, modules, capabilities, cgroups,
other proxies and their rules, ports, ranges, sizes of conntrack, forwarding, rp_filter, MTU, and
the version of the API server. It takes the flags and the configuration file of the proxy, writes
nothing, and may run while kube-proxy or Sluice serves the node.

Each line is ok, warning or stop, with the finding and what to do. A test that this process has no
permission for is a warning that names the missing permission: run the command as root.

Exit status: 0 no line is stop; 1 a line is stop; 2 the arguments or the configuration are invalid.`,
		Example: `  sluice preflight --config /var/lib/kube-proxy/config.conf
  sluice preflight --kubeconfig /etc/kubernetes/admin.conf --proxy-mode iptables
  sluice preflight -o json | jq -r '.items[] | select(.level == "stop").found'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runPreflight(cmd.Context(), flags, o, env) },
	}
	o.register(cmd, cmd.Flags())
	addHidden(cmd, fs)
	for _, name := range []string{"config", "kubeconfig", "proxy-mode"} {
		fs.Lookup(name).Hidden = false
	}
	return answers(cmd)
}

func runPreflight(ctx context.Context, flags *config.Flags, o *output, env Env) error {
	reader, chosen := choosing(ctx, flags, env)
	opt, logs, err := reader.load()
	if err != nil {
		return err
	}
	defer logs.Close()
	opt.Reason, opt.Version = chosen.Reason, version()
	findings := preflight.Judge(app.Preflight(ctx, opt))
	if _, err := show(env.Stdout, o.format, answered(findings...), rows[preflight.Finding]); err != nil {
		return err
	}
	if slices.ContainsFunc(findings, preflight.Finding.Stops) {
		return &exitError{status: exitFailure}
	}
	return nil
}

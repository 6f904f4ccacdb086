package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/preflight"
)

func newPlan(env Env) *cobra.Command {
	var strict bool
	best := env.Kinds[0].Mode
	fs := pflag.NewFlagSet("plan", pflag.ContinueOnError)
	flags := config.NewFlags(fs)
	cmd := &cobra.Command{
		Use:   "plan -f PATH",
		Short: "Print the rules for manifests; needs no privileges",
		Long: `Print the rules that Sluice would write for manifests on this node, in the language of
the data plane. Nothing is written and no privileges are needed. The flags of the proxy
that decide what is programmed (--cluster-cidr, --nodeport-addresses ...) work here too.

Warnings name each invalid object, which the plan leaves out in part or completely, and report
manifests without a Service.

Exit status: 0 the plan is printed, even with warnings; 1 it is not printed. With --strict, for CI,
the status is 1 if there is a warning.`,
		Example: "  sluice plan -f manifests/\n" +
			"  kubectl get svc,endpointslices,nodes -A -o yaml | sluice plan -f - --mode " + best,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			clean, err := plan(cmd, flags, env)
			if err == nil && strict && !clean {
				err = errors.New("--strict: an object is wrong, or there is no Service; see the warnings above")
			}
			return err
		},
	}
	cmd.Flags().VarP(fs.Lookup("manifests").Value, "filename", "f",
		"file or folder with manifests, or - for standard input; repeatable")
	cmd.Flags().Var(fs.Lookup("proxy-mode").Value, "mode", "data plane (default "+best+")")
	cmd.Flags().BoolVar(&strict, "strict", false, "exit with status 1 if an object is wrong, or if there is no Service")
	addHidden(cmd, fs)
	return cmd
}

// addHidden adds the flags of the proxy to a command; its help does not list them.
func addHidden(cmd *cobra.Command, fs *pflag.FlagSet) {
	fs.VisitAll(func(f *pflag.Flag) {
		f.Hidden = true
		cmd.Flags().AddFlag(f)
	})
}

// plan prints the plan. clean means that there are Services, and no object is wrong.
func plan(cmd *cobra.Command, flags *config.Flags, env Env) (clean bool, err error) {
	o, logs, err := load(flags, env)
	if err != nil {
		return false, err
	}
	defer logs.Close()
	if len(o.Config.Manifests) == 0 {
		return false, errors.New("no manifests: name a file or folder with -f, or - for standard input")
	}
	p, err := app.Preview(cmd.Context(), o)
	if err != nil {
		return false, err
	}
	if p.Services == 0 {
		o.Log.Warn("No Service found", "manifests", o.Config.Manifests)
	}
	_, err = fmt.Fprint(env.Stdout, p.Plan)
	return p.Services > 0 && !p.Problems, err
}

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

package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/config"
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

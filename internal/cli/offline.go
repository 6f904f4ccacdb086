package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/answer/explain"
	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/preflight"
	"github.com/sluice-proxy/sluice/internal/text"
)

func newPlan(env Env) *cobra.Command {
	var strict bool
	best := env.Kinds[0].Mode
	fs := pflag.NewFlagSet("plan", pflag.ContinueOnError)
	flags := config.NewFlags(fs)
	cmd := &cobra.Command{
		Use:   "plan -f PATH",
		Short: "Print the rules for manifests; needs no privileges",
		Long:  about("plan"),
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
		Use:     "preflight",
		Short:   "Test whether Sluice can serve this node, before you start it; changes nothing",
		Long:    about("preflight"),
		Example: about("preflight: examples"),
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return runPreflight(cmd.Context(), flags, o, env) },
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

type explaining struct {
	env    Env
	flags  *config.Flags
	files  bool // the manifests are in flags
	via    string
	node   bool // this node is the source
	output *output
}

func newExplain(env Env) *cobra.Command {
	fs := pflag.NewFlagSet("explain", pflag.ContinueOnError)
	e := &explaining{env: env, flags: config.NewFlags(fs), output: newOutput(objectFormats())}
	cmd := &cobra.Command{
		Use:     "explain [SOURCE] DESTINATION[:PORT][/PROTOCOL]",
		Short:   "Explain where connections go, and why",
		Long:    about("explain"),
		Example: about("explain: examples"),
		Args:    e.arguments,
		RunE: func(cmd *cobra.Command, args []string) error {
			e.files = cmd.Flags().Changed("filename")
			if len(args) == 1 {
				args = []string{"node", args[0]}
			}
			return e.run(cmd.Context(), args[0], args[1])
		},
	}
	cmd.Flags().VarP(fs.Lookup("manifests").Value, "filename", "f", "answer from this file or folder with manifests, "+
		"or from standard input (-), instead of asking the daemon; repeatable")
	cmd.Flags().StringVar(&e.via, "via", "", "`interface` on which the connection arrives, "+
		"for modes that recognize pods by it")
	cmd.Flags().BoolVar(&e.node, "from-node", false, "this node itself is the source, as without SOURCE")
	e.output.register(cmd, cmd.Flags())
	addHidden(cmd, fs)
	return checked(cmd)
}

func (e *explaining) arguments(_ *cobra.Command, args []string) error {
	switch n := len(args); {
	case n == 1, n == 2 && !e.node:
		return nil
	case n == 2:
		return fmt.Errorf("--from-node and the source %q are given: want one of them", args[0])
	default:
		return fmt.Errorf("explain takes a source and a destination, or a destination only, got %s; "+
			"see sluice explain --help", text.Count(n, "argument"))
	}
}

func (e *explaining) run(ctx context.Context, source, destination string) error {
	q, err := explain.Parse(source, destination)
	if err != nil {
		return trouble(err)
	}
	q.Via = e.via
	answer, err := e.ask(ctx, q)
	if err != nil {
		return err
	}
	var a explain.Answer
	if err := admin.Decode(answer, &a); err != nil {
		return err
	}
	if people := e.output.encode == nil; a.Unanswered == "" || !people { // they read the error
		_, err = show(e.env.Stdout, e.output.format, answered(answer), prose[explain.Answer])
	}
	if err == nil && a.Unanswered != "" {
		err = errors.New(strings.Join(append([]string{a.Unanswered}, a.Notes...), "\n"))
	}
	return err
}

// ask asks the daemon, or computes the answer from files.
func (e *explaining) ask(ctx context.Context, q explain.Question) (answer json.RawMessage, err error) {
	if !e.files {
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		query := url.Values{"source": {q.From()}, "destination": {q.To()}, "via": {q.Via}}
		err := admin.DialNearest().Get(ctx, "/explain", query, &answer)
		return answer, err
	}
	o, logs, err := load(e.flags, e.env)
	if err != nil {
		return nil, err
	}
	defer logs.Close()
	a, err := app.Explain(ctx, o, q)
	if err != nil {
		return nil, err
	}
	return json.Marshal(a)
}

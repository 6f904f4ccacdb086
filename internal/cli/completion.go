package cli

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-proxy/sluice/internal/admin"
)

// newCompletion returns the command that prints completion scripts.
func newCompletion(env Env) *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print a script that makes a shell complete commands, flags and names of Services",
		Long: `Print a script that makes a shell complete commands, flags, their values, and names of Services.
The script asks the daemon on this node for the names.

  bash  needs the package bash-completion; this shell: source <(sluice completion bash)
        all shells: sluice completion bash > /etc/bash_completion.d/sluice
  zsh   needs compinit; all shells: sluice completion zsh > "${fpath[1]}/_sluice"
  fish  this shell: sluice completion fish | source
        all shells: sluice completion fish > ~/.config/fish/completions/sluice.fish`,
		Example:   "  source <(sluice completion bash)",
		ValidArgs: []string{"bash", "zsh", "fish"},
		Args:      cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(env.Stdout, true)
			case "zsh":
				return root.GenZshCompletion(env.Stdout)
			case "fish":
				return root.GenFishCompletion(env.Stdout, true)
			}
			return fmt.Errorf("unknown shell %q: want bash, zsh or fish", args[0])
		},
	}
}

// complete completes the values of a flag by words; without words it completes nothing.
func complete(cmd *cobra.Command, flag string, words []string) {
	// An error means that the flag does not exist or has a completion already.
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

// completeModes completes the values of the flags for the mode, and turns off the
// completion of file names for flags that are addresses and names.
func completeModes(root *cobra.Command, modes []string) {
	for _, cmd := range append(root.Commands(), root) {
		for _, flag := range []string{"mode", "proxy-mode"} {
			if cmd.Flags().Lookup(flag) != nil {
				complete(cmd, flag, modes)
			}
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Name == "hostname-override" || strings.HasSuffix(f.Name, "-address") || strings.HasSuffix(f.Name, "-cidr") {
				complete(cmd, f.Name, nil)
			}
		})
	}
}

// nameTime bounds the wait of a completion for the daemon.
const nameTime = 2 * time.Second

// askNames asks the daemon for names that begin with a text. Without a daemon there are none.
func askNames(ctx context.Context, path, namespace, begun string) []string {
	ctx, cancel := context.WithTimeout(ctx, nameTime)
	defer cancel()
	query := url.Values{"namespace": {namespace}, "name": {begun}}
	names, err := admin.All[string](admin.DialNearest().Ask(ctx, path, query))
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(names, func(name string) bool { return strings.ContainsFunc(name, notOfName) })
}

// completeNames completes the names of Services that the daemon knows, in the namespace
// if it is not empty.
func completeNames(namespace *string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		names := candidates(askNames(cmd.Context(), "/names", *namespace, begun), *namespace, begun)
		names = slices.DeleteFunc(names, func(name string) bool { return slices.Contains(args, name) })
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeNamespaces completes the namespaces of Services that the daemon knows.
func completeNamespaces(cmd *cobra.Command, _ []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return askNames(cmd.Context(), "/namespaces", "", begun), cobra.ShellCompDirectiveNoFileComp
}

// candidates returns the names in the form that was begun, with or without the
// namespace.
func candidates(names []string, namespace, begun string) []string {
	var out []string
	for _, full := range names {
		_, name, _ := strings.Cut(full, "/")
		switch {
		case namespace != "":
			out = append(out, name)
		case strings.HasPrefix(full, begun):
			out = append(out, full)
		default:
			out = append(out, name)
		}
	}
	return out
}

// notOfName reports whether no name of a Service has the character.
func notOfName(r rune) bool {
	return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789-./", r)
}

package cli

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-proxy/sluice/internal/config"
)

// usage prints the commands and flags, what a person needs first at the top.
func usage(cmd *cobra.Command, w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Usage:\n  %s\n", cmd.UseLine())
	if cmd.HasAvailableSubCommands() {
		b.WriteString("\nCommands:\n")
		printCommands(&b, cmd.Commands())
	}
	if cmd.HasExample() {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", cmd.Example)
	}
	if cmd.HasParent() {
		fmt.Fprintf(&b, "\nFlags:\n%s", cmd.Flags().FlagUsagesWrapped(width))
	} else {
		printGroups(&b, cmd.Flags())
	}
	_, err := io.WriteString(w, b.String())
	return err
}

const width = 100

// printCommands prints what commands there are, with their other names.
func printCommands(b *strings.Builder, all []*cobra.Command) {
	out := tabwriter.NewWriter(b, 0, 8, 3, ' ', 0)
	for _, c := range all {
		if c.IsAvailableCommand() {
			fmt.Fprintf(out, "  %s\t%s\n", strings.Join(append([]string{c.Name()}, c.Aliases...), ", "), c.Short)
		}
	}
	_ = out.Flush() // a strings.Builder takes everything
}

func printGroups(b *strings.Builder, all *pflag.FlagSet) {
	for _, g := range config.Groups() {
		fs := pflag.NewFlagSet(g.Title, pflag.ContinueOnError)
		fs.SortFlags = false
		for _, name := range g.Flags {
			fs.AddFlag(all.Lookup(name))
		}
		fmt.Fprintf(b, "\n%s:\n%s", g.Title, fs.FlagUsagesWrapped(width))
	}
	b.WriteString("\nFlags that only older versions of kube-proxy had are accepted as well: docs/flags.md lists them.\n")
}

package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/text"
)

// usage prints the commands and flags, the most used first.
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

func printCommands(b *strings.Builder, all []*cobra.Command) {
	out := text.NewColumns(b)
	out.Indent = "  "
	for _, c := range all {
		if c.IsAvailableCommand() {
			out.Row(strings.Join(append([]string{c.Name()}, c.Aliases...), ", "), c.Short)
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

package cli

import (
	"fmt"
	"io"
	"strings"

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
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() {
				fmt.Fprintf(&b, "  %-12s %s\n", strings.Join(append([]string{c.Name()}, c.Aliases...), ", "), c.Short)
			}
		}
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

func printGroups(b *strings.Builder, all *pflag.FlagSet) {
	for _, g := range config.Groups() {
		fs := pflag.NewFlagSet(g.Title, pflag.ContinueOnError)
		fs.SortFlags = false
		for _, name := range g.Flags {
			fs.AddFlag(all.Lookup(name))
		}
		fmt.Fprintf(b, "\n%s:\n%s", g.Title, fs.FlagUsagesWrapped(width))
	}
}

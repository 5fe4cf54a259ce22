package bustest

// streamOf is the name of a stream that topics of a behavior share.
func streamOf(prefix string) string {
	out := []byte(prefix)
	for i, c := range out {
		if c == '.' {
			out[i] = '-'
		}
	}
	return "SHARED-" + string(out)
}

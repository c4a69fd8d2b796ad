module github.com/tideline-io/tideline/integration

go 1.26.0

require github.com/tideline-io/tideline v0.0.0

replace github.com/tideline-io/tideline => ../

"""Damaged Parquet files are refused, whatever pyarrow does with them."""

import base64
import subprocess
import sys
import zlib

# The statistics of a column of numbers are those of texts: asked for the description of that
# column, pyarrow ends the process.
DAMAGED = (
    "c-oazL1<h>7@j|Qvw2HjWD|B?=jlUVBw31V>n7Sz%U&jvWE$JXZaOg*JY;uSqGj8}q_**vA_$fq6pN^6$-"
    "z^4s6z3eMWI&@7Cnd}QV<WG1P?ukM8A2v-K55Xc?)l5|C#^)zVH8j-U&T3EIhH65#M^^?eAW{-dz@nVEv4(b-"
    "$Qrj9F_>YGswtN?BvEQHta-ZH+QUX&fu7EzUH;J}ywcWHds?YK<gAl82tQG|Ck1^^MWJGB8M>TA;MClrV*eHOBBc8m"
    "B2{`4ML69ObAK0K;abhua@eDFG(Xkj3AkJqgh9I6CioT5-t_dq&d)a!>mj)#jPztI`^GN7JNdk;X52%Jz-"
    "~3WT%splfK44{WM4J&@(4ftZGTXyixT+0Y>mb<Tr$-#`Kq*?DBs?9-"
    "0E>xWWKp<w9Ppm^tpOV@%J+nmUVOgzf=<<T7duij~yM;cbwv5p?q*N0Z;%3XLT<ni2yJ^$Y4KW)O9L9tI<z4hj&J!S"
    "lHzVwfC+*+x=mQ?R;YM_u8Qr!Li%5DEX3OqfQ=~7KW{J|Co@r?~sT<2o5Tde<m?JoetDZuTn)cBM)=qsldG#yhe6K5"
    ")T!`D22oWV@EVp5rw9t$jFVho_02yL74p_D&EG7qK5%odrUheb(Z44iPjO7rlAO0FrGBHHUA|6%|Pot1F%5sB`AfXO"
    "CY(oI^Vh@OJm*;N>=>6CA^p_9&TD#0uIo!>&%lxHwgG00&45bgJ@<{weX*BFFfJf#O7%^T+j=wsYIEMk`3ygHq_ZRh"
    "o`zj~j?Xvuav+qBb;xZYSJ+ss`MKeWbi-"
    ")3jLWhdLEoxgtZ+c(~Q6n5HqX|M$XJD(6<R6fXLW~Kg8<4jd}Oawz+(qC!3@@nI3y)nd&#kebc1bMSsYc$)DupAYmV"
    "u8gXhz_z$F51cwU11Xb+!Nl&6yD$kfA>=z6`fAe#qi2uDTix3%0va00C+oOi&2XA8HHa`;c`#m=6{ObS#q5^CBrM(F"
    "e&)qA3f~BlHzbP6W-y4kAuRWJ-fGdCxK7AltBC-O>tY(#zTc4d;g!N%hV|u-tfa1Ov9@X70W=)%se-"
    "DxaG3ELr=PA)P0RqMYW!zN?lN63u;oS1*I3#*w~m-$J1|?Qd4PQYgMgnYnQ&KPowA|Y$hfr(qLL-LUo>57hE|t_iVG"
    "~{vNmPenpK{Tzz~W>T0}Qtdmrkt=vP}qMGti>d17n{=)Ok+L`HQ`?8CtsZ1tI)n%A>Zhw7gX@7NjdGSJWx3RqP^5WT"
    "KWb{Dkz;IMVpIocDyBRy7W`_R(kY{kN"
)


def test_a_damaged_description_of_a_column_does_not_end_the_process(tmp_path):
    (tmp_path / "l.parquet").write_bytes(zlib.decompress(base64.b85decode(DAMAGED)))
    read = (
        "from dnadiff.formats.table import Parquet\n"
        "try: [*Parquet.rows('l.parquet', lambda names: names)]\n"
        "except ValueError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", read], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "l.parquet is not a parquet file, or is damaged" in done.stdout
